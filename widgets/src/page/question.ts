/** A question in the page that must be answered before something happens. */

import { button, element, setText, uniqueId } from './dom.js';

/** An additional choice, shown as a checkbox. */
interface Option {
  readonly label: string;
  /** Its explanation. */
  readonly note: string;
}

export class Question {
  readonly el = element('div', 'km-question');
  private readonly text = element('p');
  private readonly option = element('div', 'km-option');
  private readonly box = element('input');
  private readonly optionLabel = element('span');
  private readonly note = element('div', 'km-reason');
  private readonly yes = button('', 'km-yes', () => this.answer(true));
  private readonly no = button('Cancel', '', () => this.answer(false));
  private onAnswer: ((yes: boolean, option: boolean) => void) | null = null;

  constructor(label: string) {
    this.el.setAttribute('role', 'alertdialog');
    this.el.setAttribute('aria-label', label);
    this.text.id = uniqueId('km-question');
    this.el.setAttribute('aria-describedby', this.text.id);
    this.box.type = 'checkbox';
    this.note.id = uniqueId('km-option');
    this.box.setAttribute('aria-describedby', this.note.id);
    const tick = element('label', 'km-field');
    tick.append(this.box, this.optionLabel);
    this.option.append(tick, this.note);
    // JupyterLab has shortcuts on Enter and Escape.
    this.el.setAttribute('data-lm-suppress-shortcuts', 'true');
    const buttons = element('div', 'km-buttons');
    buttons.append(this.yes, this.no);
    this.el.append(this.text, this.option, buttons);
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
   * Ask; replaces a question that is open.
   *
   * @param verb - label of the button that confirms
   * @param onAnswer - called once, unless the question is withdrawn; its second argument: the option is ticked
   * @param option - never ticked at first
   */
  ask(
    text: string,
    verb: string,
    onAnswer: (yes: boolean, option: boolean) => void,
    option: Option | null = null
  ): void {
    setText(this.text, text);
    setText(this.yes, verb);
    this.option.hidden = option === null;
    setText(this.optionLabel, option?.label ?? '');
    setText(this.note, option?.note ?? '');
    this.box.checked = false;
    this.onAnswer = onAnswer;
    this.el.hidden = false;
    // Focus the button that changes nothing: a second Enter must not confirm by accident.
    this.no.focus();
  }

  withdraw(): void {
    this.onAnswer = null;
    this.el.hidden = true;
  }

  private answer(yes: boolean): void {
    const { onAnswer } = this;
    const option = !this.option.hidden && this.box.checked;
    this.withdraw();
    onAnswer?.(yes, option);
  }
}
