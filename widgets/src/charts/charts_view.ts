/** The charts of a source: embedded anew for each schema, fed with its rows and events, in the colours of the page. */

import type { BokehDocument } from './bokeh_api.js';
import { embed, loadBokeh } from './bokeh.js';
import { localise, zoneOfBrowser, type Zone } from './charts.js';
import { Feed } from './feed.js';
import { paint, readColors, watchTheme } from './theme.js';
import { button, element, errorText, setText } from '../page/dom.js';
import type { ChartSource } from '../stream/source.js';
import type { Rows, Schema } from '../stream/page_messages.js';

const CALM_PERIOD_MS = 1000;

interface ChartsOptions {
  /** Called at the end of each drawing. */
  readonly onDraw?: () => void;
  /** The zone of the times on axes and in tooltips; the browser's if not given. */
  readonly zone?: Zone;
}

/** Charts that are shown. */
interface Shown {
  readonly feed: Feed;
  readonly document: BokehDocument;
  readonly pane: HTMLElement;
  dispose(): void;
}

export class ChartsView {
  /** The charts, and above them what is to be said about them. */
  readonly el = element('div', 'km-charts');
  readonly note = element('div', 'km-note');
  private readonly noteText = element('span');
  private readonly retry = button('Try again', '', () => void this.build(true));
  private readonly cleanup: (() => void)[] = [];
  private current: Shown | null = null;
  /** Rows that come while charts are being built; null when they are not. */
  private backlog: Rows[] | null = null;
  private builds = 0;
  private windowSeconds = 60;
  private visible = false;

  constructor(
    private readonly source: ChartSource,
    private readonly options: ChartsOptions = {}
  ) {
    this.note.append(this.noteText, this.retry);
    this.note.hidden = true;
    this.cleanup.push(
      source.changed.on(() => this.current?.feed.setEvents(source.events)),
      source.opened.on(() => {
        this.backlog = [];
        void this.build(false);
      }),
      source.arrived.on(rows => {
        this.current?.feed.add(rows);
        this.backlog?.push(rows);
      }),
      watchTheme(() => this.paint())
    );
  }

  /** The charts on the page; null until there are some. */
  get shown(): { readonly feed: Feed; readonly document: BokehDocument } | null {
    return this.current;
  }

  /** Set how many seconds the charts show. */
  setWindow(seconds: number): void {
    this.windowSeconds = seconds;
    this.current?.feed.setWindow(seconds);
  }

  /** Nothing is drawn while nobody can see it. */
  setVisible(visible: boolean): void {
    this.visible = visible;
    this.current?.feed.setVisible(visible);
  }

  /** Give the charts the page's colours. */
  paint(): void {
    if (this.current !== null) {
      paint(this.current.document, readColors(this.el));
    }
  }

  dispose(): void {
    this.builds += 1;
    this.cleanup.forEach(clean => clean());
    this.current?.dispose();
    this.current = null;
  }

  /** Build the charts of the source's schema, and only then let go of those that are shown. */
  private async build(afresh: boolean): Promise<void> {
    const build = ++this.builds;
    const { source, options } = this;
    const { schema } = source;
    if (schema === null || schema.series.length === 0) {
      return; // The sampler has not said yet what it measures; the schema will change when it has.
    }
    this.show(this.current === null ? 'Preparing the charts…' : '');
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
      this.el.append(pane);
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
        ...(options.onDraw ? { onDraw: options.onDraw } : {}),
        ...(calm ? { period: CALM_PERIOD_MS } : {})
      });
      this.replace({ feed, pane, ...charts }, history, schema);
    } catch (error) {
      if (build === this.builds) {
        this.backlog = null;
        this.show(`The charts could not be shown: ${errorText(error)}`, true);
      }
    }
  }

  private replace(charts: Shown, history: Rows | null, schema: Schema): void {
    const { feed, pane, document } = charts;
    const old = this.current;
    localise(document, this.options.zone ?? zoneOfBrowser);
    feed.setVisible(this.visible);
    feed.setWindow(this.windowSeconds);
    feed.setEvents(this.source.events);
    for (const rows of [...(history ? [history] : []), ...(this.backlog ?? [])]) {
      if (rows.schema.version === schema.version) {
        feed.add(rows);
      }
    }
    this.backlog = null;
    this.current = {
      feed,
      pane,
      document,
      dispose: () => {
        feed.dispose();
        charts.dispose();
        pane.remove();
      }
    };
    this.paint();
    pane.classList.remove('km-building');
    old?.dispose();
    this.show('');
  }

  /** Show a sentence above the charts; with a button where building them failed. */
  private show(text: string, failed = false): void {
    setText(this.noteText, text);
    this.note.hidden = text === '';
    this.retry.hidden = !failed;
  }
}
