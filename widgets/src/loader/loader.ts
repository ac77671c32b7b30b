/** One loader's radios, knobs and counter: the kernel owns its state, the page only the click. */

import type { CodeReply } from '../stream/protocol.js';
import type { AnalysisState } from '../analysis/analysis.js';
import { CounterView, isWatched, wrongText } from './counter.js';
import { button, element, errorText, setAttribute, setText, uniqueId } from '../page/dom.js';
import { number } from '../analysis/figures.js';
import { InsightControl, type Found, type InsightActions } from '../analysis/insight.js';
import { KnobsControl } from './knobs.js';
import { OfferView } from '../analysis/offer.js';
import { Question } from '../page/question.js';
import type { Backend, Knobs, LoaderState } from '../stream/page_messages.js';

/** The time for which a click's choice is shown after its answer, in ms. */
const SETTLE_MS = 300;
/** A figure of what images cost, and the characters that are kept free for it: `0.0000999`. */
const FIGURE = /\d[\d.,]*/g;
const LONGEST = 9;
/** The meaning of the rate in the line of a loader beside the main one. */
const RATE = '\nimages/s: mean over its last minute of deliveries';

export interface LoaderActions {
  switchTo(loader: string, backend: string, confirmed: boolean): Promise<LoaderState>;
  decline(loader: string): Promise<void>;
  set(loader: string, knobs: Partial<Knobs>): Promise<LoaderState>;
  diagnose(loader: string, synthetic: boolean): Promise<void>;
  tune(loader: string): Promise<void>;
  undoTune(): Promise<void>;
  code(loader: string): Promise<CodeReply>;
  cancelDiagnosis(): Promise<void>;
  profile(loader: string, steps: number): Promise<void>;
  failed(message: string): void;
}

/** The rest of what is shown with a loader's state. */
interface LoaderContext {
  /** There are several loaders. */
  readonly named: boolean;
  /** Another loader is the main one: this one is a line, to be opened. */
  readonly beside: boolean;
  /** Images per second of its last minute of deliveries; null before its second batch. */
  readonly rate: number | null;
  /** It is a recording's, where every loader is of the past. */
  readonly recorded: boolean;
  /** The kernel accepts requests now. */
  readonly live: boolean;
  /** Null before the first subscription. */
  readonly analysis: AnalysisState | null;
  readonly found: Found;
  /** The cost of its images; empty where there is no price. */
  readonly cost: string;
}

interface Radio {
  readonly el: HTMLElement;
  readonly reason: HTMLElement;
  available: boolean;
  confirm: string | null;
}

export class LoaderControl {
  readonly el = element('section', 'km-loader');
  /** The line of a loader beside the main one; a click opens the rest of it. */
  private readonly fold = button('', 'km-fold', () => {
    this.isOpen = !this.isOpen;
    this.line = ''; // what it shows beyond its line is brought up to date
    this.showFold();
  });
  private readonly foldName = element('strong');
  private readonly foldFacts = element('span');
  private readonly body = element('div', 'km-loader-body');
  /** The offer and the results, below all buttons, which they would move otherwise. */
  readonly found = element('section', 'km-found');
  private readonly foundLabel = element('span', 'km-label');
  private readonly label = element('span', 'km-label', 'Loader');
  private readonly group = element('div', 'km-radios');
  private readonly reasons = element('div', 'km-reasons');
  private readonly question = new Question('Switch?');
  private readonly knobs: KnobsControl;
  private readonly counter = new CounterView();
  private readonly cost = element('div', 'km-cost');
  private readonly costLine = element('span', '');
  private readonly facts = element('div', 'km-facts');
  private readonly insight: InsightControl;
  private readonly offer: OfferView;
  private readonly radios = new Map<string, Radio>();
  private state: LoaderState;
  /** The engine that was clicked, until the kernel's own state shows it. */
  private asked: string | null = null;
  private clicks = 0;
  /** The engine that is pointed at, or has the focus: its line alone is shown, where lines are shown on request. */
  private pointed: string | null = null;
  /** A person has opened it, while it is beside the main one. */
  private isOpen = false;
  private isBeside = false;
  /** Everything that decides what its line says, as it was last shown. */
  private line = '';
  /** It must be seen: something is asked for or has gone wrong. */
  private isNeeded = false;

  constructor(
    state: LoaderState,
    private readonly actions: LoaderActions
  ) {
    this.state = state;
    this.label.id = uniqueId('km-loader');
    this.group.setAttribute('role', 'radiogroup');
    this.group.setAttribute('aria-labelledby', this.label.id);
    this.group.addEventListener('keydown', this.onKey);
    this.group.addEventListener('pointerleave', () => this.point(null));
    this.group.addEventListener('focusout', () => this.point(null));
    this.knobs = new KnobsControl({
      set: knobs => this.actions.set(this.state.id, knobs),
      code: () => this.actions.code(this.state.id),
      failed: message => this.actions.failed(message)
    });
    const insight: InsightActions = {
      diagnose: synthetic => this.actions.diagnose(this.state.id, synthetic),
      tune: () => this.actions.tune(this.state.id),
      undoTune: () => this.actions.undoTune(),
      cancelDiagnosis: () => this.actions.cancelDiagnosis(),
      profile: steps => this.actions.profile(this.state.id, steps),
      failed: message => this.actions.failed(message)
    };
    this.insight = new InsightControl(insight);
    this.offer = new OfferView({
      take: engine => this.choose(engine),
      decline: () => this.actions.decline(this.state.id),
      failed: message => this.actions.failed(message),
      disappeared: () => this.focus()
    });
    const line = element('div', 'km-line');
    line.append(this.label, this.insight.verdictEl, this.group);
    this.cost.append(this.costLine);
    this.facts.append(this.counter.el, this.knobs.el, this.cost);
    this.body.id = uniqueId('km-loader-body');
    this.fold.setAttribute('aria-controls', this.body.id);
    this.fold.append(this.foldName, this.foldFacts);
    this.body.append(line, this.question.el, this.reasons, this.facts);
    this.el.append(this.fold, this.body);
    this.found.append(this.foundLabel, this.offer.el, this.insight.el);
  }

  /** Show the kernel's state. */
  update(state: LoaderState, context: LoaderContext): void {
    const line = lineKey(state, context);
    if (this.isFolded && line === this.line) {
      return;
    }
    this.line = line;
    this.state = state;
    const { named, recorded, analysis, found, cost } = context;
    const isOver = state.ended === true;
    const watched = isWatched(state);
    const what = watched ? 'Watched' : 'Loader';
    const isJobs = (state.ranks ?? 0) > 0;
    const name = named || watched || isJobs ? `${what} ${state.name}` : what;
    // Of one loader alone the radios say enough to those who see them.
    const isObvious = (name === 'Loader' && state.ended !== true) || context.beside;
    this.label.classList.toggle('km-obvious', isObvious);
    setText(this.label, state.ended && !recorded ? `${name} (ended)` : name);
    setText(this.foundLabel, named ? state.name : '');
    this.group.hidden = this.reasons.hidden = isOver || state.backends.length === 0;
    this.knobs.el.hidden = isOver || watched;
    if (isOver) {
      this.question.withdraw();
    }
    this.showEngines();
    for (const [name, radio] of this.radios) {
      if (!state.backends.some(backend => backend.name === name)) {
        radio.el.remove();
        radio.reason.remove();
        this.radios.delete(name);
      }
    }
    this.check();
    this.knobs.update(state);
    this.counter.update(state);
    setText(this.costLine, cost);
    const longest = cost.replace(FIGURE, figure => figure.padEnd(LONGEST, '0'));
    setAttribute(this.cost, 'data-whole', longest);
    this.cost.hidden = cost === '';
    this.insight.update(state, analysis, found, context.live && !isOver);
    this.showOffer(context.live && !isOver ? analysis : null);
    const isFound = [analysis?.diagnosing, analysis?.profiling].some(
      task => task?.state === 'running' && task.loader === state.id
    );
    this.isBeside = context.beside;
    this.isNeeded = isFound || state.wanted !== null || wrongText(state) !== '';
    const rate = context.rate === null ? '' : ` · ${number(context.rate)} images/s`;
    setText(this.foldName, state.name);
    setText(this.foldFacts, `${isOver ? ' · ended' : ` · ${state.backend}`}${rate}`);
    const title = `${state.name}: ${state.status}${context.rate === null ? '' : RATE}`;
    setAttribute(this.fold, 'title', title);
    this.showFold();
  }

  /** Only its line is shown. */
  get isFolded(): boolean {
    return this.isBeside && !this.isOpen && !this.isNeeded;
  }

  private showFold(): void {
    // Who is at work in it by keyboard stays there.
    if (this.isBeside && !this.isOpen && this.body.contains(document.activeElement)) {
      this.isOpen = true;
    }
    const { isFolded } = this;
    this.fold.hidden = !this.isBeside;
    setAttribute(this.fold, 'aria-expanded', String(!isFolded));
    this.body.hidden = this.found.hidden = isFolded;
  }

  /** Hidden as soon as an engine is requested here; the kernel notifies the other pages. */
  private showOffer(analysis: AnalysisState | null): void {
    const { id, backend, wanted } = this.state;
    const offer = analysis?.offers.find(({ loader }) => loader === id);
    this.offer.update(offer?.source === (this.asked ?? wanted ?? backend) ? offer : null);
  }

  private focus(): void {
    [...this.radios.values()].find(({ el }) => el.tabIndex === 0)?.el.focus();
    this.point(null);
  }

  private point(name: string | null): void {
    if (name !== this.pointed) {
      this.pointed = name;
      this.showEngines();
    }
  }

  private showEngines(): void {
    const { backends } = this.state;
    const isOnRequest = isServed(backends);
    const pointed = isOnRequest ? backends.find(({ name }) => name === this.pointed) : undefined;
    this.reasons.classList.toggle('km-on-request', isOnRequest);
    this.reasons.classList.toggle('km-requested', pointed !== undefined && aside(pointed) !== '');
    this.group.classList.toggle('km-served', isOnRequest);
    for (const backend of backends) {
      // Engines of which the same is said share a line.
      const alike = backends.filter(
        one => one.available === backend.available && aside(one) === aside(backend)
      );
      const names = alike.length > 1 ? alike.map(({ name }) => name) : [backend.name];
      const radio = this.radios.get(backend.name) ?? this.addRadio(backend.name);
      this.show(radio, backend, names, (pointed?.name ?? names[0]) === backend.name);
    }
  }

  /** @param host - where its *Diagnose* and *Profile* stand; null: with itself */
  placeActions(host: HTMLElement | null): void {
    const { actionsEl } = this.insight;
    const place = host ?? this.facts;
    if (actionsEl.parentElement !== place) {
      place.append(actionsEl);
    }
  }

  dispose(): void {
    this.knobs.dispose();
    this.insight.actionsEl.remove();
    this.found.remove();
    this.el.remove();
  }

  private addRadio(name: string): Radio {
    const el = element('div', 'km-radio');
    el.setAttribute('role', 'radio');
    el.setAttribute('aria-label', name);
    el.append(element('span', '', name));
    const reason = element('div', 'km-reason');
    reason.id = uniqueId('km-reason');
    const radio: Radio = { el, reason, available: true, confirm: null };
    el.addEventListener('click', () => {
      el.focus();
      this.choose(name);
    });
    el.addEventListener('pointerenter', () => this.point(name));
    el.addEventListener('focus', () => this.point(name));
    this.radios.set(name, radio);
    this.group.append(el);
    this.reasons.append(reason);
    return radio;
  }

  /**
   * @param names - of the engines of which the same is said
   * @param isShown - its own line is the one that is shown of theirs
   */
  private show(radio: Radio, backend: Backend, names: readonly string[], isShown: boolean): void {
    const { available, confirm } = backend;
    radio.available = available;
    radio.confirm = confirm;
    const said = aside(backend);
    setText(radio.reason, said === '' ? '' : `${names.join(', ')}: ${said}`);
    radio.reason.hidden = said === '' || !isShown;
    setAttribute(radio.el, 'aria-disabled', available ? null : 'true');
    setAttribute(radio.el, 'aria-describedby', said === '' ? null : radio.reason.id);
    setAttribute(radio.el, 'title', said === '' ? null : said);
  }

  /** Check one radio: the engine clicked, else the one that the kernel is asked for, else the active one. */
  private check(): void {
    const { backend, wanted } = this.state;
    const checked = this.asked ?? wanted ?? backend;
    const tabbable = this.radios.has(checked) ? checked : [...this.radios.keys()][0];
    for (const [name, { el }] of this.radios) {
      setAttribute(el, 'aria-checked', String(name === checked));
      el.tabIndex = name === tabbable ? 0 : -1;
      el.classList.toggle('km-pending', name === checked && name !== backend);
      el.classList.toggle('km-active', name === backend);
    }
  }

  private choose(name: string): void {
    const radio = this.radios.get(name);
    if (!radio?.available) {
      return;
    }
    const { backend, wanted } = this.state;
    if (radio.confirm === null || name === (this.asked ?? wanted ?? backend)) {
      this.question.withdraw();
      this.take(name, radio, false);
      return;
    }
    this.point(null);
    this.question.ask(radio.confirm, name === 'synthetic' ? 'Replay' : 'Start', yes => {
      radio.el.focus();
      this.point(null);
      if (yes) {
        this.take(name, radio, true);
      }
    });
  }

  private take(name: string, radio: Radio, confirmed: boolean): void {
    const clicked = performance.now();
    const click = ++this.clicks;
    this.asked = name;
    this.point(null); // the status below is what counts now
    setAttribute(radio.el, 'data-acknowledged', null);
    this.check();
    this.actions
      .switchTo(this.state.id, name, confirmed)
      .then(
        () => {
          setAttribute(radio.el, 'data-acknowledged', (performance.now() - clicked).toFixed(1));
        },
        (error: unknown) => {
          if (this.clicks === click) {
            this.asked = null;
            this.check();
          }
          this.actions.failed(`${name} was not taken: ${errorText(error)}`);
        }
      )
      .finally(() => {
        // A frame that left the kernel before the click did may still be on its way.
        setTimeout(() => {
          if (this.clicks === click) {
            this.asked = null;
            this.check();
          }
        }, SETTLE_MS);
      });
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    const names = [...this.radios.keys()];
    const at = names.findIndex(name => this.radios.get(name)!.el === event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const steps: Record<string, number> = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      Home: 0,
      End: names.length - 1
    };
    const step = steps[event.key];
    if (step !== undefined) {
      // Arrows only move: choosing has consequences for a training run, so it takes a key of its own.
      this.radios.get(names[(step + names.length) % names.length]!)!.el.focus();
    } else if (event.key === ' ' || event.key === 'Enter') {
      this.choose(names[at]!);
    } else if (event.key === 'Escape' && this.pointed !== null) {
      this.point(null);
    } else {
      return;
    }
    // JupyterLab has shortcuts on these keys.
    event.preventDefault();
    event.stopPropagation();
  };
}

/** Everything that decides what a folded loader shows, and whether it stays folded. */
function lineKey(state: LoaderState, context: LoaderContext): string {
  const { analysis, beside, rate, live, named, recorded, cost } = context;
  const tasks = [analysis?.diagnosing, analysis?.profiling].map(task => [
    task?.state,
    task?.loader
  ]);
  return JSON.stringify([state, beside, rate, live, named, recorded, cost, tasks]);
}

/** Where DALI can be chosen, what is said of an engine is shown while it is pointed at; else all reasons stand there. */
function isServed(backends: readonly Backend[]): boolean {
  return backends.some(({ name, available }) => available && name.startsWith('dali'));
}

/** The status of a loader, without a reason that stands beside its engines. */
export function statusText({ status, backends }: LoaderState): string {
  if (isServed(backends)) {
    return status;
  }
  const reasons = backends.flatMap(({ reason }) => (reason ? [reason.replace(/\.$/, '')] : []));
  return reasons.reduce((text, reason) => text.replace(`: ${reason}`, ''), status);
}

/** Why an engine cannot be used, or what it changes or leaves to others; empty where there is nothing to say. */
function aside({ available, reason, note }: Backend): string {
  return available ? (note ?? '') : (reason ?? 'Not available.');
}
