/** The dashboard's controls: status, buttons, loaders, the strip, and errors. */

import { Chooser } from './chooser.js';
import type { Connection } from '../stream/connection.js';
import { costText, Deliveries } from '../analysis/cost.js';
import { button, CopyLine, download, element, runOnce, setAttribute, setText } from './dom.js';
import { LoaderControl, statusText } from '../loader/loader.js';
import { mainLoader } from '../analysis/analysis.js';
import { MarkControl } from './mark.js';
import { RecordingView } from './recording.js';
import { Results } from '../analysis/results.js';
import type { MonitorSource } from '../stream/source.js';
import { StripView } from '../analysis/strip.js';
import { Toolbar } from './toolbar.js';
import { WindowChooser } from '../charts/windows.js';
import type { LoaderState, Rows } from '../stream/page_messages.js';

const WATCH = 'from kernel_monitor import watch_loader\nbatches = watch_loader(batches)';
const ADVICE =
  'Every DataLoader that is iterated from now on appears here, and can be switched while it runs. ' +
  'For anything else that gives batches:';
const RUNS = 'A cell is running; no DataLoader has been iterated yet.';
/** A notebook that is run as a whole rests for moments, and is about to iterate its loader: no advice before this. */
const RESTS_MS = 5000;
/** A cell that runs for so long without a known loader may take its batches from something else. */
const LONG_MS = 60_000;

/** Seconds of history of a kernel whose package is too old to report it. */
const HISTORY_S = 600;

interface ControlHooks {
  /** The person chose how many seconds the charts show. */
  readonly onWindow: (seconds: number) => void;
  /** The charts are to show so many times the span of time that they show now. */
  readonly onZoom?: (factor: number) => void;
  /** A request is about to be sent to the kernel, and a person waits for its reply. */
  readonly onRequest: () => void;
  /** Restart the kernel, where the host can. */
  readonly restart?: () => Promise<void>;
  /** Show a recorded session, where the host can. */
  readonly openRecorded?: (path: string) => Promise<void>;
}

export class Controls {
  readonly el = element('div', 'km-controls');
  private readonly status = element('div', 'km-status');
  private readonly dot = element('span', 'km-light');
  private readonly sentences = element('span', 'km-sentences');
  private readonly startButton = button('Start', '', () => void this.startOrResume());
  private readonly stopButton = button('Stop', '', () => {
    void this.act(this.stopButton, () => this.source.stop());
  });
  private readonly exportButton = button('Export', '', () => {
    void this.act(this.exportButton, () => this.exportPage());
  });
  private readonly restartButton = button('Restart kernel', '', () => {
    void this.act(this.restartButton, () => this.hooks.restart!());
  });
  private readonly reloadButton = button('Reload', '', () => {
    void this.act(this.reloadButton, () => this.source.reload!());
  });
  private readonly recording = new RecordingView();
  private readonly windows: WindowChooser;
  private readonly chooser: Chooser;
  private readonly mark: MarkControl;
  private readonly remedy = new CopyLine('');
  private readonly left = element('div', 'km-left');
  private readonly openLine = new CopyLine('');
  private readonly openButton = button('Open it', '', () => {
    void this.act(this.openButton, () =>
      this.hooks.openRecorded!(this.source.connection.recorded!)
    );
  });
  private readonly problem = element('div', 'km-problem');
  private readonly problemText = element('span');
  private readonly loaders = element('div', 'km-loaders');
  private readonly found = element('div', 'km-loaders');
  private readonly byId = new Map<string, LoaderControl>();
  private readonly invitation = element('div', 'km-invitation');
  private readonly runs = element('span', '', RUNS);
  private readonly advice = element('div', 'km-advice');
  /** The state of the cells: one runs or none does, and since when (ms of this page). */
  private cell = { runs: false, since: performance.now() };
  private readonly strip = new StripView((loader, backend) => {
    void this.act(this.strip.back, async () => {
      await this.source.switchTo(loader, backend);
    });
  });
  private readonly results = new Results();
  private readonly deliveries = new Deliveries();
  private readonly toolbar = new Toolbar(this.el);
  /** Diagnose and Profile stand here where there is one loader. */
  private readonly actions = element('div', 'km-actions-place');

  constructor(
    private readonly source: MonitorSource,
    private readonly hooks: ControlHooks
  ) {
    this.status.setAttribute('role', 'status');
    this.status.setAttribute('aria-live', 'polite');
    this.status.append(this.dot, this.sentences);
    this.problem.setAttribute('role', 'alert');
    this.problem.hidden = true;
    const close = button('Dismiss', '', () => (this.problem.hidden = true));
    this.problem.append(this.problemText, close);
    this.advice.append(element('span', '', ADVICE), new CopyLine(WATCH).el);
    this.invitation.append(this.runs, this.advice);
    this.left.append(
      element('span', '', 'Its session was recorded:'),
      hooks.openRecorded ? this.openButton : this.openLine.el
    );
    this.windows = new WindowChooser(hooks.onWindow, factor => hooks.onZoom?.(factor));
    this.chooser = new Chooser({
      configure: changes => {
        this.hooks.onRequest();
        return this.source.configure(changes);
      },
      failed: message => this.failed(message)
    });
    this.mark = new MarkControl({
      mark: label => {
        this.hooks.onRequest();
        return this.source.mark(label);
      },
      failed: message => this.failed(message)
    });
    const buttons = element('div', 'km-buttons');
    buttons.append(
      ...[this.mark.button, this.chooser.button, this.exportButton],
      ...[this.startButton, this.stopButton, this.restartButton, this.reloadButton]
    );
    this.toolbar.el.append(this.windows.el, this.actions, buttons);
    const bar = element('div', 'km-bar');
    bar.append(this.status, this.recording.el, this.toolbar.toggle, this.toolbar.el);
    const change = element('div', 'km-change');
    change.append(this.strip.el, this.strip.back);
    this.el.append(
      ...[this.loaders, bar, this.mark.panel, this.chooser.panel, this.remedy.el, this.left],
      ...[this.problem, this.invitation, change, this.found]
    );
    this.update();
  }

  /** Show the source's state. */
  update(): void {
    const { connection, loaders, strip, recorded, settings } = this.source;
    setAttribute(this.dot, 'data-state', connection.state);
    this.remedy.el.hidden = connection.remedy === null;
    this.remedy.text = connection.remedy ?? '';
    this.left.hidden = connection.recorded === null;
    this.openLine.text = `%monitor open ${connection.recorded ?? ''}`;
    this.updateButtons(connection);
    this.toolbar.update(this.acceptsRequests);
    const live = ['running', 'paused', 'stopped'].includes(connection.state);
    this.recording.update(live && connection.state !== 'stopped' ? this.source.recording : null);
    this.chooser.update(live ? settings : null, this.source.charts);
    this.mark.update(this.acceptsRequests && this.source.analysis !== null);
    this.results.update(this.source.events);
    if (recorded === null) {
      this.windows.update(settings?.history ?? HISTORY_S, false);
    } else {
      this.windows.update(recorded.seconds + (recorded.bin_s ?? 0), true);
    }
    this.updateLoaders(live || recorded !== null ? loaders : []);
    this.showStatus(connection, loaders);
    this.showInvitation(live && loaders.length === 0);
    const { name = '', backend = '' } = loaders.find(({ id }) => id === strip?.loader) ?? {};
    this.strip.update(strip, loaders.length > 1 ? name : '', backend, this.acceptsRequests);
  }

  /** Without a loader: say what is happening, and what is measured where nothing is about to. */
  private showInvitation(shown: boolean): void {
    const { busy, connection } = this.source;
    const now = performance.now();
    if (busy !== this.cell.runs) {
      this.cell = { runs: busy, since: now };
    }
    const isMeasuring = connection.state === 'running';
    this.runs.hidden = !isMeasuring || !busy;
    const wait = busy ? LONG_MS : RESTS_MS;
    this.advice.hidden = isMeasuring && now - this.cell.since < wait;
    this.invitation.hidden = !shown || (this.runs.hidden && this.advice.hidden);
  }

  /** Measured rows, as they come. */
  take(rows: Rows): void {
    this.deliveries.take(rows);
  }

  /** Another session or schema. */
  begin(): void {
    this.deliveries.clear();
  }

  private get acceptsRequests(): boolean {
    const { state } = this.source.connection;
    return state === 'running' || state === 'paused';
  }

  /** Show that something failed, until it is dismissed. */
  failed(message: string): void {
    setText(this.problemText, message);
    this.problem.hidden = false;
  }

  /** Open the choice of charts, if there is one. */
  choose(): void {
    this.toolbar.open();
    this.chooser.open();
  }

  /** One region shows the state: of the loaders, or why nothing is shown. */
  private showStatus({ state, text }: Connection, loaders: readonly LoaderState[]): void {
    // A loader that is folded to its line says there what it does.
    const unfolded = loaders.filter(({ id }) => this.byId.get(id)?.isFolded !== true);
    const sentences = unfolded.map(loader => {
      const status = statusText(loader);
      return loaders.length > 1 ? `${loader.name}: ${status}` : status;
    });
    if (state !== 'running' || sentences.length === 0) {
      sentences.unshift(text);
    }
    if (state !== 'running' && state !== 'stopped' && state !== 'paused') {
      sentences.length = 1;
    }
    while (this.sentences.children.length > sentences.length) {
      this.sentences.lastElementChild!.remove();
    }
    sentences.forEach((sentence, i) => {
      setText(this.sentences.children[i] ?? this.sentences.appendChild(element('span')), sentence);
    });
  }

  private updateButtons({ state }: Connection): void {
    const isPaused = state === 'paused';
    const measuring = state === 'running' || isPaused;
    const isRecorded = state === 'recorded';
    // One place for both: the button that cannot be used now is hidden.
    this.startButton.hidden = isRecorded || state === 'running';
    this.stopButton.hidden = isRecorded || !measuring;
    this.restartButton.hidden = state !== 'dead' || this.hooks.restart === undefined;
    this.reloadButton.hidden = !isRecorded || this.source.recorded?.live !== true;
    setText(this.startButton, isPaused ? 'Resume' : 'Start');
    this.enable(this.startButton, isPaused || this.source.canStart);
    this.enable(this.stopButton, measuring);
    this.enable(
      this.exportButton,
      this.source.session !== null && (measuring || isRecorded || state === 'stopped')
    );
    const both = [this.startButton, this.stopButton];
    if (both.some(el => el.hidden && el === document.activeElement)) {
      both.find(el => !el.hidden)?.focus();
    }
  }

  private enable(which: HTMLButtonElement, enabled: boolean): void {
    // Not `disabled` while it works: a disabled button loses the keyboard's focus.
    which.disabled = !enabled && !which.hasAttribute('aria-busy');
  }

  private addLoader(state: LoaderState): LoaderControl {
    const ask = <T>(order: () => Promise<T>): Promise<T> => {
      this.hooks.onRequest();
      return order();
    };
    const { source } = this;
    const control = new LoaderControl(state, {
      switchTo: (...order) => ask(() => source.switchTo(...order)),
      decline: (...order) => ask(() => source.decline(...order)),
      set: (...order) => ask(() => source.set(...order)),
      diagnose: (...order) => ask(() => source.diagnose(...order)),
      tune: (...order) => ask(() => source.tune(...order)),
      code: (...order) => ask(() => source.code(...order)),
      undoTune: () => ask(() => source.undoTune()),
      cancelDiagnosis: () => ask(() => source.cancelDiagnosis()),
      profile: (...order) => ask(() => source.profile(...order)),
      failed: message => this.failed(message)
    });
    this.byId.set(state.id, control);
    this.loaders.append(control.el);
    this.found.append(control.found);
    return control;
  }

  private updateLoaders(loaders: readonly LoaderState[]): void {
    for (const [id, control] of this.byId) {
      if (!loaders.some(loader => loader.id === id)) {
        control.dispose();
        this.byId.delete(id);
      }
    }
    const isOnly = loaders.length === 1;
    const main = mainLoader(loaders, this.source.analysis);
    for (const state of loaders) {
      const control = this.byId.get(state.id) ?? this.addLoader(state);
      control.placeActions(isOnly ? this.actions : null);
      const rate = this.deliveries.rate(state.id);
      control.update(state, {
        named: !isOnly,
        beside: state.id !== main && this.source.recorded === null,
        rate,
        recorded: this.source.recorded !== null,
        live: this.acceptsRequests,
        analysis: this.source.analysis,
        found: this.results.of(state.id, this.source.analysis),
        cost: costText(this.source.settings, state, rate)
      });
      if (state.id === main) {
        this.putFirst(control);
      }
    }
  }

  /** Put the main loader first, unless somebody is at work by keyboard, whose place would be lost. */
  private putFirst({ el, found }: LoaderControl): void {
    if (this.loaders.firstChild !== el && !this.loaders.contains(document.activeElement)) {
      this.loaders.prepend(el);
      this.found.prepend(found);
    }
  }

  private async startOrResume(): Promise<void> {
    const paused = this.source.connection.state === 'paused';
    await this.act(this.startButton, () => (paused ? this.source.resume() : this.source.start()));
  }

  private async exportPage(): Promise<void> {
    const { filename, html } = await this.source.exportPage();
    download(filename, html, 'text/html');
  }

  private async act(which: HTMLButtonElement, action: () => Promise<void>): Promise<void> {
    await runOnce(which, action, message => this.failed(message));
    this.updateButtons(this.source.connection);
  }
}
