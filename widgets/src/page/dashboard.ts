/**
 * The shared view of cell and sidebar: controls above charts (its Python half: kernel_monitor/widgets.py).
 *
 * `mountDashboard` sets `el.monitor`, a handle for debugging and for tests that read what the charts hold.
 */

import { ChartsView } from '../charts/charts_view.js';
import { StatsView } from '../charts/stats.js';
import type { MonitorSource } from '../stream/source.js';
import { Controls } from './controls.js';
import { element, setText } from './dom.js';
import { Machines } from './machines.js';
import { makeHandle, type DashboardElement } from './handle.js';

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

/** Drawing keeps out of a click's way for this long, in every dashboard of the page: they share its thread. */
const ANSWER_MS = 200;
const ASKED = 'kernel-monitor-asked';
/** Counters that no drawing brings along are shown after this time. */
const STALE_MS = 1000;

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

/** An event for each dashboard in the output of a cell: a page with a sidebar adds a line under it. */
const SHOWN = 'kernel-monitor:cell-dashboard';

/** @param el - holds the dashboard, and what the page adds to it */
export function announceCellDashboard(el: HTMLElement): void {
  document.dispatchEvent(new CustomEvent(SHOWN, { detail: el }));
}

export function onCellDashboard(listener: (el: HTMLElement) => void): void {
  document.addEventListener(SHOWN, event => {
    listener((event as CustomEvent<HTMLElement>).detail);
  });
}

class Dashboard {
  private readonly controls: Controls;
  private readonly stats = new StatsView();
  /** The sentences on the slowest rank. */
  private readonly ranks = element('div', 'km-ranks');
  /** The sentences on GPUs that the kernel holds while no cell runs. */
  private readonly notices = element('div', 'km-ranks');
  private readonly machines: Machines;
  private readonly charts: ChartsView;
  private readonly cleanup: (() => void)[] = [];
  /** The state that is shown at once, as it was last shown. */
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
    this.charts = new ChartsView(source, { onDraw: () => this.updateControls() });
    this.controls = new Controls(source, {
      onWindow: seconds => this.charts.setWindow(seconds),
      onZoom: factor => this.charts.shown?.feed.zoom(factor),
      onRequest: () => document.dispatchEvent(new Event(ASKED)),
      restart,
      openRecorded
    });
    this.machines = new Machines(source);
    this.ranks.setAttribute('role', 'status');
    this.ranks.setAttribute('aria-label', 'Slow ranks');
    this.ranks.hidden = true;
    this.notices.setAttribute('role', 'status');
    this.notices.setAttribute('aria-label', 'Notices');
    this.notices.hidden = true;
    el.replaceChildren(
      this.controls.el,
      this.ranks,
      this.notices,
      this.stats.el,
      this.machines.el,
      this.charts.note,
      this.charts.el
    );
    this.cleanup.push(
      source.connectionChanged.on(({ state }) => {
        el.dataset.state = state;
        this.updateControls();
      }),
      source.changed.on(() => this.changed()),
      source.opened.on(() => {
        this.controls.begin();
        this.stats.begin();
      }),
      source.arrived.on(rows => {
        this.controls.take(rows);
        this.stats.take(rows);
      })
    );
    this.watchVisibility();
    el.monitor = makeHandle(source, () => this.charts.shown);
  }

  chooseCharts(): void {
    this.controls.choose();
  }

  dispose(): void {
    clearTimeout(this.stale);
    this.cleanup.forEach(clean => clean());
    this.source.setVisible(false);
    this.charts.dispose();
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
      ...(analysis?.notices ?? []),
      ...(analysis?.ranks ?? []),
      ...(analysis?.offers ?? []).map(({ loader, sentence }) => `${loader} ${sentence}`)
    ].join('\n');
    if (urgent !== this.urgent || strip?.text !== this.strip || this.charts.shown === null) {
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
    this.machines.update();
    const slow = this.source.analysis?.ranks ?? [];
    this.ranks.hidden = slow.length === 0;
    setText(this.ranks, slow.join('\n'));
    const notices = this.source.analysis?.notices ?? [];
    this.notices.hidden = notices.length === 0;
    setText(this.notices, notices.join('\n'));
  }

  /** Frames flow only while somebody can see them: the tab is in front, and the element on the screen. */
  private watchVisibility(): void {
    const update = (): void => this.setVisible(this.intersecting && !document.hidden);
    const observer = new IntersectionObserver(entries => {
      this.intersecting = entries[entries.length - 1]!.isIntersecting;
      update();
    });
    observer.observe(this.el);
    const leave = (): void => this.setVisible(false);
    const hold = (): void => this.charts.shown?.feed.hold(ANSWER_MS);
    document.addEventListener(ASKED, hold);
    document.addEventListener('visibilitychange', update);
    addEventListener('pagehide', leave);
    addEventListener('pageshow', update);
    this.cleanup.push(() => {
      observer.disconnect();
      document.removeEventListener('visibilitychange', update);
      document.removeEventListener(ASKED, hold);
      removeEventListener('pagehide', leave);
      removeEventListener('pageshow', update);
    });
  }

  private setVisible(visible: boolean): void {
    if (visible !== this.visible) {
      this.visible = visible;
      this.charts.setVisible(visible);
      this.source.setVisible(visible);
    }
  }
}
