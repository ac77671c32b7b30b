/** The state of the recording, and the reason where the session is not recorded. */

import { element, setAttribute, setText } from './dom.js';
import type { Recording } from '../stream/page_messages.js';

export class RecordingView {
  readonly el = element('div', 'km-recording');
  private readonly text = element('span');

  constructor() {
    this.el.setAttribute('role', 'status');
    this.el.setAttribute('aria-live', 'polite');
    const dot = element('span', 'km-recording-dot', '●');
    dot.setAttribute('aria-hidden', 'true');
    this.el.append(dot, this.text);
  }

  /** @param recording - null: nothing is shown */
  update(recording: Recording | null): void {
    this.el.hidden = recording === null;
    if (recording === null) {
      // Cleared, so that a message that comes again is announced again.
      setText(this.text, '');
      return;
    }
    setAttribute(this.el, 'data-state', recording.state);
    setAttribute(this.el, 'title', recording.path);
    setText(this.text, recordingText(recording));
  }
}

/** `recording`, `not recording: the disk is full…` */
export function recordingText({ state, message }: Recording): string {
  if (state === 'recording') {
    return 'recording'; // Its file is in the title.
  }
  if (state === 'off') {
    return 'not recording';
  }
  const what = state === 'moved' ? 'recording' : 'not recording';
  return message === '' ? what : `${what}: ${message}`;
}
