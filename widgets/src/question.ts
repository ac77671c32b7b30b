/** A question in the page that must be answered before something happens. */

import { button, element, setText, uniqueId } from './dom.js';

export class Question {
  readonly el = element('div', 'km-question');
  private readonly text = element('p');
  private readonly yes = button('', 'km-yes', () => this.answer(true));
  private readonly no = button('Cancel', '', () => this.answer(false));
  private onAnswer: ((yes: boolean) => void) | null = null;

  constructor(label: string) {
    this.el.setAttribute('role', 'alertdialog');
    this.el.setAttribute('aria-label', label);
    this.text.id = uniqueId('km-question');
    this.el.setAttribute('aria-describedby', this.text.id);
    // JupyterLab has shortcuts on Enter and Escape.
    this.el.setAttribute('data-lm-suppress-shortcuts', 'true');
    const buttons = element('div', 'km-buttons');
    buttons.append(this.yes, this.no);
    this.el.append(this.text, buttons);
    this.el.hidden = true;
    this.el.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key === 'Escape') {
        event.preventDefault();
        this.answer(false);
      }
    });
  }

  /**
   * Ask, in place of what was asked before.
   *
   * @param verb - what the button that agrees says
   * @param onAnswer - called once, unless the question is withdrawn
   */
  ask(text: string, verb: string, onAnswer: (yes: boolean) => void): void {
    setText(this.text, text);
    setText(this.yes, verb);
    this.onAnswer = onAnswer;
    this.el.hidden = false;
    // The answer that changes nothing: a second Enter must not agree by accident.
    this.no.focus();
  }

  withdraw(): void {
    this.onAnswer = null;
    this.el.hidden = true;
  }

  private answer(yes: boolean): void {
    const { onAnswer } = this;
    this.withdraw();
    onAnswer?.(yes);
  }
}
