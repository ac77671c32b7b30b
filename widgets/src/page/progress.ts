/** Progress of what a person waits for: a bar, a sentence and a button that cancels. */

import { button, element, setAttribute, setText } from './dom.js';

export class ProgressLine {
  readonly el = element('div', 'km-progress');
  readonly cancel: HTMLButtonElement;
  private readonly bar = element('div', 'km-progress-bar');
  private readonly filled = element('div');
  private readonly text = element('span', 'km-progress-text');
  private readonly left = element('span', 'km-progress-left');

  /** @param label - what it is, for assistive technology */
  constructor(label: string, onCancel: (() => void) | null) {
    this.bar.setAttribute('role', 'progressbar');
    this.bar.setAttribute('aria-valuemin', '0');
    this.bar.setAttribute('aria-valuemax', '100');
    this.bar.append(this.filled);
    this.cancel = button('Cancel', '', () => onCancel?.());
    this.cancel.hidden = onCancel === null;
    this.label = label;
    const words = element('div', 'km-progress-words');
    words.append(this.text, this.left);
    const column = element('div', 'km-progress-column');
    column.append(words, this.bar);
    this.el.append(column, this.cancel);
    this.el.hidden = true;
  }

  set label(label: string) {
    setAttribute(this.bar, 'aria-label', label);
    setAttribute(this.cancel, 'aria-label', `Cancel: ${label}`);
  }

  /** @param share - how much is done; null hides it */
  update(share: number | null, text = '', left = ''): void {
    this.el.hidden = share === null;
    if (share === null) {
      return;
    }
    const done = String(Math.round(Math.min(1, Math.max(0, share)) * 100));
    setAttribute(this.bar, 'aria-valuenow', done);
    setAttribute(this.bar, 'aria-valuetext', [text, left].filter(Boolean).join(', '));
    this.filled.style.width = `${done}%`;
    setText(this.text, text);
    setText(this.left, left);
  }
}
