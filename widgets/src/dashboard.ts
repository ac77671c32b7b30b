/**
 * The shared view of cell and sidebar: controls above charts (its Python half: kernel_monitor/widgets/dashboard.py).
 *
 * `mountDashboard` sets `el.monitor`, a handle for debugging and for tests that read what the charts hold.
 */

import { embed, loadBokeh, type BokehDocument } from './bokeh.js';
import { localise } from './charts.js';
import { Controls } from './controls.js';
import { button, element, errorText, setText } from './dom.js';
import { Feed } from './feed.js';
import { makeHandle, type DashboardElement } from './handle.js';
import type { MonitorSource } from './source.js';
import { StatsView } from './stats.js';
import { paint, readColors, watchTheme } from './theme.js';
import type { Rows, Schema } from './wire.js';

export interface DashboardOptions {
  /** Less space around: for a sidebar. */
  compact?: boolean;
  /** Restart the kernel. */
  restart?: () => Promise<void>;
  /** Show a recorded session. */
  openRecorded?: (path: string) => Promise<void>;
}

export interface MountedDashboard {
  /** Open the choice of charts. */
  readonly chooseCharts: () => void;
  readonly dispose: () => void;
}

/** Charts that are shown. */
interface Shown {
  readonly feed: Feed;
  readonly document: BokehDocument;
  readonly pane: HTMLElement;
  dispose(): void;
}

const CALM_PERIOD_MS = 1000;
/** Drawing keeps out of a click's way for this long, in every dashboard of the page: they share its thread. */
const ANSWER_MS = 200;
const ASKED = 'kernel-monitor-asked';
/** Counters that no drawing brings along are shown after this time. */
const STALE_MS = 500;

/** Show a source in an element; the source remains the caller's to dispose. */
export function mountDashboard(
  el: HTMLElement,
  source: MonitorSource,
  options: DashboardOptions = {}
): MountedDashboard {
  const dashboard = new Dashboard(el, source, options);
  return {
    chooseCharts: () => dashboard.chooseCharts(),
    dispose: () => dashboard.dispose()
  };
}

class Dashboard {
  private readonly controls: Controls;
  private readonly stats = new StatsView();
  private readonly charts = element('div', 'km-charts');
  private readonly note = element('div', 'km-note');
  private readonly noteText = element('span');
  private readonly retry = button('Try again', '', () => void this.build(true));
  private readonly cleanup: (() => void)[] = [];
  private shown: Shown | null = null;
  /** Rows that come while charts are being built; null when they are not. */
  private backlog: Rows[] | null = null;
  private builds = 0;
  private windowSeconds = 60;
  /** What was last shown of the state that is shown at once. */
  private urgent = '';
  private strip: string | undefined;
  private stale: ReturnType<typeof setTimeout> | undefined;
  private visible = false;
  private intersecting = false;

  constructor(
    private readonly el: DashboardElement,
    private readonly source: MonitorSource,
    { compact = false, restart, openRecorded }: DashboardOptions
  ) {
    el.classList.add('km-dashboard');
    el.classList.toggle('km-compact', compact);
    this.controls = new Controls(source, {
      onWindow: seconds => {
        this.windowSeconds = seconds;
        this.shown?.feed.setWindow(seconds);
      },
      onAsk: () => document.dispatchEvent(new Event(ASKED)),
      restart,
      openRecorded
    });
    this.note.append(this.noteText, this.retry);
    this.note.hidden = true;
    el.replaceChildren(this.controls.el, this.stats.el, this.note, this.charts);
    this.cleanup.push(
      source.connectionChanged.on(({ state }) => {
        el.dataset.state = state;
        this.updateControls();
      }),
      source.changed.on(() => {
        this.shown?.feed.setEvents(source.events);
        this.changed();
      }),
      source.opened.on(() => {
        this.backlog = [];
        this.controls.begin();
        this.stats.begin();
        void this.build(false);
      }),
      source.arrived.on(rows => {
        this.shown?.feed.add(rows);
        this.backlog?.push(rows);
        this.controls.take(rows);
        this.stats.take(rows);
      }),
      watchTheme(() => this.paint())
    );
    this.watchVisibility();
    el.monitor = makeHandle(source, () => this.shown);
  }

  chooseCharts(): void {
    this.controls.choose();
  }

  dispose(): void {
    this.builds += 1;
    clearTimeout(this.stale);
    this.cleanup.forEach(clean => clean());
    this.source.setVisible(false);
    this.shown?.dispose();
    this.shown = null;
    delete this.el.monitor;
    this.el.replaceChildren();
    this.el.classList.remove('km-dashboard', 'km-compact');
    delete this.el.dataset.state;
  }

  /** Counters change with every frame and wait for the next drawing; what a click waits for is shown at once. */
  private changed(): void {
    const { loaders, strip, settings, recording, analysis } = this.source;
    const urgent = [
      ...loaders.flatMap(({ id, backend, wanted, status, knobs }) => [
        ...[id, backend, wanted, status],
        ...[knobs.workers, knobs.prefetch, knobs.threads]
      ]),
      ...[settings?.interval, settings?.history, settings?.record, ...(settings?.charts ?? [])],
      ...[recording?.state, recording?.message],
      ...[settings?.price, analysis?.diagnosing?.state, analysis?.profiling?.state],
      ...(analysis?.offers ?? []).map(({ loader, sentence }) => `${loader} ${sentence}`)
    ].join('\n');
    if (urgent !== this.urgent || strip?.text !== this.strip || this.shown === null) {
      this.urgent = urgent;
      this.strip = strip?.text;
      this.updateControls();
    } else {
      this.stale ??= setTimeout(() => this.updateControls(), STALE_MS);
    }
  }

  private updateControls(): void {
    clearTimeout(this.stale);
    this.stale = undefined;
    this.controls.update();
    this.stats.update(this.source);
  }

  /** Frames flow only while somebody can see them: the tab is in front, and the element on the screen. */
  private watchVisibility(): void {
    const look = (): void => this.setVisible(this.intersecting && !document.hidden);
    const observer = new IntersectionObserver(entries => {
      this.intersecting = entries[entries.length - 1]!.isIntersecting;
      look();
    });
    observer.observe(this.el);
    const leave = (): void => this.setVisible(false);
    const hold = (): void => this.shown?.feed.hold(ANSWER_MS);
    document.addEventListener(ASKED, hold);
    document.addEventListener('visibilitychange', look);
    addEventListener('pagehide', leave);
    addEventListener('pageshow', look);
    this.cleanup.push(() => {
      observer.disconnect();
      document.removeEventListener('visibilitychange', look);
      document.removeEventListener(ASKED, hold);
      removeEventListener('pagehide', leave);
      removeEventListener('pageshow', look);
    });
  }

  private setVisible(visible: boolean): void {
    if (visible !== this.visible) {
      this.visible = visible;
      this.shown?.feed.setVisible(visible);
      this.source.setVisible(visible);
    }
  }

  /** Build the charts of the source's schema, and only then let go of those that are shown. */
  private async build(afresh: boolean): Promise<void> {
    const build = ++this.builds;
    const { source } = this;
    const { schema } = source;
    if (schema === null || schema.series.length === 0) {
      return; // The sampler has not said yet what it measures; the schema will change when it has.
    }
    this.tell(this.shown === null ? 'Preparing the charts…' : '');
    try {
      const document = await source.document();
      if (build !== this.builds) {
        return;
      }
      if (document.schema !== schema.version) {
        source.refresh();
        return;
      }
      const bokeh = await loadBokeh(document.bokeh, () => source.bokehjs());
      const history = afresh ? (await source.history()).rows : null;
      if (build !== this.builds) {
        return;
      }
      const pane = element('div', 'km-pane');
      pane.classList.add('km-building');
      this.charts.append(pane);
      const charts = await embed(bokeh, document.item, pane);
      if (build !== this.builds) {
        charts.dispose();
        pane.remove();
        return;
      }
      const { Uint8NDArray } = bokeh.require('core/util/ndarray');
      const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;
      const feed = new Feed(charts.document, schema, {
        makeImage: (rows, slots) => new Uint8NDArray(new Uint8Array(rows * slots), [rows, slots]),
        onDraw: () => this.updateControls(),
        ...(calm ? { period: CALM_PERIOD_MS } : {})
      });
      this.show({ feed, pane, ...charts }, history, schema);
    } catch (error) {
      if (build === this.builds) {
        this.backlog = null;
        this.tell(`The charts could not be shown: ${errorText(error)}`, true);
      }
    }
  }

  private show(
    charts: Omit<Shown, 'dispose'> & { dispose(): void },
    history: Rows | null,
    schema: Schema
  ): void {
    const { feed, pane } = charts;
    const old = this.shown;
    localise(charts.document);
    feed.setVisible(this.visible);
    feed.setWindow(this.windowSeconds);
    feed.setEvents(this.source.events);
    for (const rows of [...(history ? [history] : []), ...(this.backlog ?? [])]) {
      if (rows.schema.version === schema.version) {
        feed.add(rows);
      }
    }
    this.backlog = null;
    this.shown = {
      feed,
      pane,
      document: charts.document,
      dispose: () => {
        feed.dispose();
        charts.dispose();
        pane.remove();
      }
    };
    this.paint();
    pane.classList.remove('km-building');
    old?.dispose();
    this.tell('');
  }

  private paint(): void {
    if (this.shown !== null) {
      paint(this.shown.document, readColors(this.el));
    }
  }

  private tell(text: string, failed = false): void {
    setText(this.noteText, text);
    this.note.hidden = text === '';
    this.retry.hidden = !failed;
  }
}
