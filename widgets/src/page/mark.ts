/** The *Mark…* button and its line: a label for this moment in the session and on its charts. */

import { button, element, errorText, setText, uniqueId } from './dom.js';

/** The time for which the button confirms that the mark was set, in ms. */
const CONFIRMED_MS = 1500;
const LABEL = 'Mark…';

interface MarkActions {
  mark(label: string): Promise<void>;
  failed(message: string): void;
}

export class MarkControl {
  readonly button = button(LABEL, '', () => this.toggle());
  readonly panel = element('form', 'km-mark');
  private readonly input = element('input');
  private readonly set = element('button', 'km-button', 'Set the mark');
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly actions: MarkActions) {
    this.panel.id = uniqueId('km-mark');
    this.panel.hidden = true;
    // JupyterLab has shortcuts on Enter, Escape and letters.
    this.panel.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.button.setAttribute('aria-expanded', 'false');
    this.button.setAttribute('aria-controls', this.panel.id);
    this.button.title = 'Note this moment: what follows is judged by itself';
    const label = element('label', 'km-field', 'What begins now ');
    this.input.type = 'text';
    this.input.maxLength = 80;
    this.input.placeholder = 'augment x12';
    this.set.type = 'submit';
    label.append(this.input);
    this.panel.append(label, this.set);
    this.panel.addEventListener('submit', event => {
      event.preventDefault();
      void this.send();
    });
    this.panel.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key === 'Escape') {
        event.preventDefault();
        this.close();
      }
    });
  }

  /** @param possible - the kernel can take a mark now */
  update(possible: boolean): void {
    this.button.hidden = !possible;
    if (!possible) {
      this.panel.hidden = true;
      this.button.setAttribute('aria-expanded', 'false');
    }
  }

  private toggle(): void {
    if (this.panel.hidden) {
      this.panel.hidden = false;
      this.button.setAttribute('aria-expanded', 'true');
      this.input.focus();
    } else {
      this.close();
    }
  }

  private close(): void {
    this.panel.hidden = true;
    this.button.setAttribute('aria-expanded', 'false');
    this.button.focus();
  }

  private async send(): Promise<void> {
    const label = this.input.value.trim();
    if (label === '' || this.set.hasAttribute('aria-busy')) {
      this.input.focus();
      return;
    }
    this.set.setAttribute('aria-busy', 'true');
    try {
      await this.actions.mark(label);
      this.input.value = '';
      this.close();
      setText(this.button, 'Marked');
      clearTimeout(this.timer);
      this.timer = setTimeout(() => setText(this.button, LABEL), CONFIRMED_MS);
    } catch (error) {
      this.actions.failed(`The mark was not set: ${errorText(error)}`);
    } finally {
      this.set.removeAttribute('aria-busy');
    }
  }
}
