/** *Run one rank alone*: below the sentences on ranks, once a job has ended whose command is known (its Python half:
 * kernel_monitor/runtime/rank_commands.py). */

import type { AnalysisState } from '../analysis/analysis.js';
import { button, element, errorText, setText } from './dom.js';
import { Question } from './question.js';

type Alone = NonNullable<AnalysisState['alone']>;

interface AloneActions {
  run(job: number): Promise<void>;
  stop(): Promise<void>;
}

export class AloneView {
  readonly el = element('div', 'km-alone');
  private readonly start = button('', '', () => this.ask());
  private readonly stop = button(
    'End the run',
    '',
    () => void this.attempt(() => this.actions.stop())
  );
  private readonly question = new Question('Run one rank alone');
  private readonly failed = element('p', 'km-alone-failed');
  private alone: Alone | null = null;
  private busy = false;

  constructor(private readonly actions: AloneActions) {
    this.failed.setAttribute('role', 'alert');
    const buttons = element('div', 'km-buttons');
    buttons.append(this.start, this.stop);
    this.el.append(buttons, this.question.el, this.failed);
    this.update(null);
  }

  /** @param alone - null: there is nothing to run */
  update(alone: Alone | null): void {
    if (alone?.job !== this.alone?.job || alone?.running === true || alone === null) {
      this.question.withdraw();
    }
    this.alone = alone;
    this.el.hidden = alone === null && this.failed.textContent === '';
    this.start.hidden = alone === null || alone.running;
    this.stop.hidden = alone?.running !== true;
    setText(this.start, alone === null ? '' : `How well does job ${alone.job} scale?`);
  }

  private ask(): void {
    const { alone } = this;
    if (alone !== null) {
      setText(this.failed, '');
      this.question.ask(alone.question, 'Run one rank alone', yes => {
        this.start.focus();
        if (yes) {
          void this.attempt(() => this.actions.run(alone.job));
        }
      });
    }
  }

  private async attempt(action: () => Promise<void>): Promise<void> {
    if (this.busy) {
      return;
    }
    this.busy = true;
    this.start.setAttribute('aria-busy', 'true');
    try {
      setText(this.failed, '');
      await action();
    } catch (error) {
      setText(this.failed, errorText(error));
      this.el.hidden = false;
    } finally {
      this.busy = false;
      this.start.removeAttribute('aria-busy');
    }
  }
}
