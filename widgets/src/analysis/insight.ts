/**
 * Where a loader's steps spend their time: the verdict, and *Tune*, *Diagnose* and *Profile*, which a person starts. The
 * kernel owns their results; the page owns which of them are open.
 */

import type { AnalysisState, Diagnosing, Diagnosis, Profile, Profiling } from './analysis.js';
import { button, element, runOnce, setAttribute, setText } from '../page/dom.js';
import { count } from './figures.js';
import { OperatorsView } from './operators.js';
import { ProgressLine } from '../page/progress.js';
import { Question } from '../page/question.js';
import { RunsView } from './runs.js';
import { VerdictView, verdictWords } from './verdict.js';
import type { LoaderState } from '../stream/page_messages.js';

/** Steps that *Profile* takes. */
export const PROFILED_STEPS = 10;
/** Seconds for which *Diagnose* measures each engine, unless it is asked otherwise. */
const MEASURED_S = 8;
/** Seconds that *Tune* takes at most, likewise. */
const TUNED_S = 60;

export interface InsightActions {
  diagnose(synthetic: boolean): Promise<void>;
  tune(): Promise<void>;
  undoTune(): Promise<void>;
  cancelDiagnosis(): Promise<void>;
  profile(steps: number): Promise<void>;
  failed(message: string): void;
}

/** The results that the session has for one loader, oldest first. */
export interface Found {
  readonly diagnoses: readonly Diagnosis[];
  readonly profiles: readonly Profile[];
}

export class InsightControl {
  readonly el = element('div', 'km-insight');
  private readonly verdict = new VerdictView();
  private readonly tuneButton = button('Tune', '', () => this.askTune());
  private readonly diagnoseButton = button('Diagnose', '', () => this.ask());
  private readonly profileButton = button(`Profile ${PROFILED_STEPS} steps`, '', () => {
    void this.act(this.profileButton, () => this.actions.profile(PROFILED_STEPS));
  });
  /** *Tune*, *Diagnose* and *Profile*: placed by the owner. */
  readonly actionsEl = element('div', 'km-actions');
  /** Placed by the owner, beside the engines. */
  readonly verdictEl: HTMLElement;
  private readonly tuneQuestion = new Question('Tune?');
  private readonly question = new Question('Diagnose?');
  private readonly diagnosing = new ProgressLine('Diagnose', () => {
    void this.act(this.diagnosing.cancel, () => this.actions.cancelDiagnosis());
  });
  private readonly profiling = new ProgressLine('Profile', null);
  private readonly outcome = element('p', 'km-outcome');
  private readonly runs = new RunsView(which => {
    void this.act(which, () => this.actions.undoTune());
  });
  private readonly operators = new OperatorsView();
  /** Announces to assistive technology a new verdict, new warnings and the end of what a person started, and nothing in between. */
  private readonly news = element('div', 'km-unseen');
  private kind: string | null = null;
  private warned = '';
  /** The warnings that are in `news`. */
  private careful: readonly string[] = [];
  private ended = '';
  private state: LoaderState | null = null;
  /** The longest duration that the running diagnosis announced: the full length of its bar. */
  private longest = 0;

  constructor(private readonly actions: InsightActions) {
    this.news.setAttribute('aria-live', 'polite');
    this.verdictEl = this.verdict.el;
    this.actionsEl.append(this.tuneButton, this.diagnoseButton, this.profileButton);
    this.el.append(
      ...[this.verdict.warnings, this.verdict.body, this.tuneQuestion.el, this.question.el],
      ...[this.diagnosing.el, this.profiling.el, this.outcome],
      ...[this.runs.keptEl, this.runs.el, this.operators.el, this.news]
    );
  }

  /**
   * @param analysis - null before the first subscription
   * @param live - its loop may run now
   */
  update(state: LoaderState, analysis: AnalysisState | null, found: Found, live: boolean): void {
    this.state = state;
    // What can be measured of a loader here is not of one whose loops run in other processes.
    const isHidden = analysis === null || (state.ranks ?? 0) > 0;
    this.el.hidden = this.verdict.hidden = this.actionsEl.hidden = isHidden;
    if (isHidden) {
      return;
    }
    const verdict = analysis.verdicts.get(state.id) ?? null;
    const { main } = analysis;
    this.verdict.update(verdict, main !== null && main !== state.id && analysis.verdicts.has(main));
    this.verdict.hidden = verdict === null && !live;
    // Which rules' words they are: a figure that changes is no news.
    const warned = (verdict?.warnings ?? []).map(words => words.replace(/[\d.,]+/g, '')).join('\n');
    if (verdict !== null && this.kind !== null) {
      const isNew = warned !== this.warned && warned !== '';
      // Without the sentence: its figures would be those of the moment, and stay there to be read later.
      const news = [
        ...(verdict.kind === this.kind ? [] : [verdictWords(verdict)[0]]),
        ...(isNew ? verdict.warnings.map(words => `Careful: ${words}`) : [])
      ];
      if (news.length > 0) {
        setText(this.news, news.join('\n'));
        this.careful = isNew ? verdict.warnings : [];
      }
    }
    if (this.careful.some(words => !verdict?.warnings.includes(words))) {
      this.careful = [];
      setText(this.news, ''); // its figures have changed, and it could still be read
    }
    this.warned = warned;
    this.kind = verdict?.kind ?? this.kind;
    this.showButtons(state, analysis, live);
    this.showProgress(state, analysis);
    const { diagnoses, profiles } = found;
    const current = of(state, analysis.diagnosing);
    // The event of a tune does not know that it was undone meanwhile.
    const result = current?.result ?? diagnoses.at(-1) ?? null;
    const isOver = this.diagnosing.el.hidden;
    // In a live session a line stands for what is in use: not one that was undone, or followed by something else.
    const kept = live ? (current?.result ?? null) : result;
    this.runs.update(
      isOver ? result : null,
      isOver ? (kept?.line ?? null) : null,
      isOver && live ? (kept?.undo ?? null) : null
    );
    this.runs.el.hidden = result === null || !isOver;
    const [profile, before] = [profiles.at(-1) ?? null, profiles.at(-2) ?? null];
    const profiling = analysis.profiling;
    const isIts = profile !== null && profiling?.result?.began === profile.began;
    this.operators.update(profile, before, isIts ? profiling.message : '');
    this.operators.el.hidden = profiles.length === 0 || !this.profiling.el.hidden;
  }

  private showButtons(state: LoaderState, analysis: AnalysisState, live: boolean): void {
    const { diagnosing, profiling } = analysis;
    this.actionsEl.hidden = !live;
    if (!live) {
      this.question.withdraw();
      this.tuneQuestion.withdraw();
    }
    const engines = state.backends.filter(({ available }) => available);
    this.tuneButton.hidden = this.diagnoseButton.hidden = engines.length === 0;
    const doing =
      diagnosing?.kind === 'tune' ? 'settings are being tried' : 'a diagnosis is running';
    const waits = [
      ...(diagnosing?.state === 'running' ? [doing] : []),
      ...(profiling?.state === 'running' ? ['steps are being profiled'] : [])
    ].join(', ');
    for (const one of [this.tuneButton, this.diagnoseButton, this.profileButton]) {
      // Not `disabled`: a button that was just pressed would lose the keyboard's focus.
      setAttribute(one, 'aria-disabled', waits === '' ? null : 'true');
      setAttribute(one, 'title', waits === '' ? null : `Not now: ${waits}.`);
    }
  }

  private showProgress(state: LoaderState, analysis: AnalysisState): void {
    const diagnosing = of(state, analysis.diagnosing);
    const profiling = of(state, analysis.profiling);
    const hadFocus = this.diagnosing.el.contains(document.activeElement);
    if (diagnosing?.state === 'running') {
      const left = diagnosing.seconds_left;
      this.diagnosing.label = commandOf(diagnosing);
      this.longest = Math.max(this.longest, left ?? 0);
      this.diagnosing.update(
        Math.max(
          diagnosing.total === 0 ? 0 : diagnosing.done / diagnosing.total,
          left === null || this.longest === 0 ? 0 : 1 - left / this.longest
        ),
        measuring(diagnosing),
        left === null ? '' : `${count(left)} s left`
      );
    } else {
      this.longest = 0;
      this.diagnosing.update(null);
      if (hadFocus) {
        (diagnosing?.kind === 'tune' ? this.tuneButton : this.diagnoseButton).focus();
      }
    }
    if (profiling?.state === 'running') {
      const { done, total, message } = profiling;
      this.profiling.update(
        done / Math.max(1, total),
        `Profile: ${message === '' ? `step ${count(done + 1)} of ${count(total)}` : message}`
      );
    } else {
      this.profiling.update(null);
    }
    this.showOutcome(diagnosing, profiling);
  }

  /** Show why the last one ended without a result, and announce once how each ended. */
  private showOutcome(diagnosing: Diagnosing | null, profiling: Profiling | null): void {
    const fails = [diagnosing, profiling].flatMap((one, i) =>
      one?.state === 'failed' || one?.state === 'cancelled'
        ? [
            `${i === 0 ? commandOf(diagnosing) : 'Profile'}: ${one.message === '' ? one.state : one.message}`
          ]
        : []
    );
    const words = fails.join('\n');
    setText(this.outcome, words);
    const failed = diagnosing?.state === 'failed' || profiling?.state === 'failed';
    this.outcome.classList.toggle('km-failed', failed);
    this.outcome.hidden = words === '';
    const ended = [diagnosing?.state, profiling?.state].join();
    if (this.ended.includes('running') && ended !== this.ended) {
      const sentence = diagnosing?.state === 'done' ? (diagnosing.result?.sentence ?? '') : '';
      const done = sentence === '' && profiling?.state === 'done' ? 'The profile is ready.' : '';
      this.careful = [];
      setText(this.news, [words, sentence, done].filter(Boolean).join('\n'));
    }
    this.ended = ended;
  }

  private askTune(): void {
    const { state } = this;
    if (state === null || this.tuneButton.hasAttribute('aria-disabled')) {
      return;
    }
    this.question.withdraw();
    this.tuneQuestion.ask(
      `Tune tries engines, workers, threads and prefetch in your loop, for at most ${TUNED_S} s, and goes on with ` +
        'the fastest. Your loop may be slower meanwhile. No sample is lost or doubled, and Undo brings back what is ' +
        'in use now.',
      'Tune',
      yes => {
        this.tuneButton.focus();
        if (yes) {
          void this.act(this.tuneButton, () => this.actions.tune());
        }
      }
    );
  }

  private ask(): void {
    const { state } = this;
    if (state === null || this.diagnoseButton.hasAttribute('aria-disabled')) {
      return;
    }
    const engines = state.backends.filter(
      ({ available, confirm }) => available && confirm === null
    );
    const synthetic = state.backends.find(
      ({ name, available }) => name === 'synthetic' && available
    );
    this.tuneQuestion.withdraw();
    this.question.ask(
      `Diagnose lets ${listed(engines.map(({ name }) => name))} deliver to your loop for about ` +
        `${MEASURED_S} s each and then goes back to ${state.wanted ?? state.backend}. ` +
        'No sample is lost or doubled.',
      'Run it',
      (yes, consent) => {
        this.diagnoseButton.focus();
        if (yes) {
          void this.act(this.diagnoseButton, () => this.actions.diagnose(consent));
        }
      },
      synthetic === undefined
        ? null
        : {
            label: 'Also replay batches (synthetic), for the ceiling',
            note: synthetic.confirm ?? ''
          }
    );
  }

  private async act(which: HTMLButtonElement, action: () => Promise<void>): Promise<void> {
    if (!which.hasAttribute('aria-disabled')) {
      await runOnce(which, action, message => this.actions.failed(message));
    }
  }
}

/** Progress, if it is this loader's. */
function of<T extends { readonly loader: string | null }>(
  state: LoaderState,
  progress: T | null
): T | null {
  return progress?.loader === state.id ? progress : null;
}

function commandOf(progress: Diagnosing | null): string {
  return progress?.kind === 'tune' ? 'Tune' : 'Diagnose';
}

/** `Diagnose: measuring dali-cpu (engine 2 of 3)`, `Tune: measuring torchvision, 4 workers` */
function measuring(progress: Diagnosing): string {
  const { message, backend, done, total } = progress;
  const what = message === '' ? `measuring ${backend ?? ''}`.trim() : message;
  const which = done < total ? ` (engine ${count(done + 1)} of ${count(total)})` : '';
  return `${commandOf(progress)}: ${what}${which}`;
}

/** `a, b and c` */
function listed(names: readonly string[]): string {
  return names.length < 2
    ? names.join('')
    : `${names.slice(0, -1).join(', ')} and ${names.at(-1)!}`;
}
