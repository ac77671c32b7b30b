/** The entry of a report's file: its charts, its theme and its paper (its Python half: kernel_monitor/report/page.py). */

import type { BokehApi } from './charts/bokeh_api.js';
import { useBokeh } from './charts/bokeh.js';
import { ChartsView } from './charts/charts_view.js';
import { WindowChooser } from './charts/windows.js';
import { errorText, setAttribute } from './page/dom.js';
import { decodeSession, ReportSource } from './stream/report_source.js';

/** CSS pixels between the margins of an A4 sheet, as the style of the report sets them. */
const SHEET = 700;

/** BokehJS, as a script of the file has started it. */
const page = globalThis as unknown as {
  readonly Bokeh: BokehApi & {
    readonly index: {
      query(chosen: () => boolean): Iterable<{ model: { type: string }; el: HTMLElement }>;
    };
  };
};

function find(id: string): HTMLElement {
  return document.getElementById(id)!;
}

/** Light or dark: as the system has it, until a person chooses. */
class Theme {
  private readonly system = matchMedia('(prefers-color-scheme: dark)');
  private dark = this.system.matches;

  constructor(private readonly button: HTMLElement) {
    button.addEventListener('click', () => this.set(!this.dark));
    this.system.addEventListener('change', () => this.set(this.system.matches));
    this.show(this.dark);
  }

  show(dark: boolean): void {
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    setAttribute(this.button, 'aria-pressed', String(dark));
  }

  /** End what `show` showed for a while. */
  restore(): void {
    this.show(this.dark);
  }

  private set(dark: boolean): void {
    this.dark = dark;
    this.show(dark);
  }
}

/** A figure is not cut in two by the edge of a sheet, and a heading stays with what it heads. */
function keepWhole(): void {
  for (const { model, el } of page.Bokeh.index.query(() => true)) {
    if (model.type === 'Figure') {
      el.style.breakInside = 'avoid';
    } else if (model.type === 'Pane') {
      el.style.breakAfter = 'avoid';
    }
  }
}

/** On paper everything is unfolded, light, and the charts are as wide as the sheet. */
function preparePaper(charts: ChartsView, host: HTMLElement, theme: Theme): void {
  let unfolded: HTMLDetailsElement[] = [];
  addEventListener('beforeprint', () => {
    keepWhole();
    theme.show(false);
    charts.paint();
    charts.shown?.feed.paintAll();
    unfolded = [...document.querySelectorAll<HTMLDetailsElement>('details:not([open])')];
    unfolded.forEach(details => (details.open = true));
    const width = host.offsetWidth;
    host.style.width = `${width}px`;
    host.style.zoom = String(Math.min(1, SHEET / width));
  });
  addEventListener('afterprint', () => {
    unfolded.forEach(details => (details.open = false));
    host.removeAttribute('style');
    theme.restore();
  });
}

async function main(): Promise<void> {
  const theme = new Theme(find('theme'));
  const host = find('charts');
  // What is written is painted before the charts take the page's thread.
  await new Promise(painted => requestAnimationFrame(() => setTimeout(painted)));
  useBokeh(page.Bokeh);
  const session = decodeSession(find('session').textContent);
  const source = new ReportSource(session);
  const drawn = new Promise<void>(resolve => {
    const charts = new ChartsView(source, { onDraw: resolve, zone: () => session.zone_ms });
    charts.setVisible(true);
    const windows = new WindowChooser(
      seconds => charts.setWindow(seconds),
      factor => charts.shown?.feed.zoom(factor)
    );
    windows.update(Number(host.dataset.seconds), true);
    find('chart-tools').append(windows.el);
    host.append(charts.note, charts.el);
    preparePaper(charts, host, theme);
  });
  await source.open();
  if (session.rows > 0) {
    await drawn;
  }
  performance.mark('charts-drawn');
  document.documentElement.dataset.ready = 'true';
}

main().catch((error: unknown) => {
  find('charts').textContent = `The charts could not be shown: ${errorText(error)}`;
});
