/**
 * Fills a chart document's named sources from rows and events, by their tags (docs/architecture.md, *Documents*).
 *
 * Rows are taken as they come; drawing happens at most four times a second, and never while nobody sees it. No chart
 * is known here: a new one needs only sources with a tag. A source of an unknown kind stays empty.
 */

import type { BokehDocument, BokehModel, BokehSource } from './bokeh.js';
import { Lines, type LinesTag } from './lines.js';
import { Bands, Markers, viewOf, type BandsTag, type MarkersTag } from './markers.js';
import { Table } from './table.js';
import { Tiles, type MakeImage, type TilesTag } from './tiles.js';
import type { MonitorEvent, Rows, Schema } from './wire.js';

type Tag = TilesTag | LinesTag | MarkersTag | BandsTag | { readonly kind: 'unknown' };

export interface FeedOptions {
  readonly makeImage: MakeImage;
  /** Called at the end of each drawing: what else changes on the page then costs no style pass of its own. */
  readonly onDraw?: () => void;
  /** Milliseconds between two drawings at least. */
  readonly period?: number;
}

export interface Newest {
  readonly seq: number;
  readonly time: number;
  readonly values: Float32Array;
}

const CHART = /^(Figure|Plot)$/;
const PERIOD_MS = 250;
/** On a slow machine drawing takes no more than this share of the page's thread, which also answers clicks… */
const SHARE = 0.25;
/** A step of the whole window's width by this part of it is too small to see… */
const STEPS = 600;
/** …but drawing happens this often at least, in ms. */
const LONGEST_MS = 1000;

export class Feed {
  /** The newest row that was taken. */
  newest: Newest | null = null;
  /** The newest row that the sources hold. */
  drawn: Newest | null = null;
  events: readonly MonitorEvent[] = [];
  /** How often was drawn, the milliseconds of this thread that bringing the sources up to date took, and all of it. */
  readonly draws = { count: 0, busy: 0, cost: 0 };

  private readonly table: Table;
  private readonly tiles: Tiles[] = [];
  private readonly lines: Lines[] = [];
  private readonly markers: (Markers | Bands)[] = [];
  private readonly range: BokehModel | null;
  private readonly chart: BokehModel | null;
  private dirty = false;
  private visible = true;
  private windowSeconds = 60;
  private drawnAt = -Infinity;
  private heldUntil = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly shortest: number;
  /** Milliseconds between two drawings now. */
  private period: number;

  constructor(
    document: BokehDocument,
    private readonly schema: Schema,
    private readonly options: FeedOptions
  ) {
    const { makeImage, period = PERIOD_MS } = options;
    this.shortest = this.period = period;
    this.range = document.get_model_by_name('time');
    this.chart = [...document.all_models].find(model => CHART.test(model.type)) ?? null;
    const tagged: [BokehSource, Tag][] = [];
    for (const model of document.all_models) {
      if (model.type === 'ColumnDataSource') {
        tagged.push([model as BokehSource, (model.tags[0] ?? { kind: 'unknown' }) as Tag]);
      }
    }
    const drawn = new Set([
      ...tagged.flatMap(([, tag]) => ('columns' in tag ? Object.values(tag.columns) : [])),
      // How long a band lasts.
      ...schema.loaders.map(({ id }) => `loader/${id}/images`)
    ]);
    const names = [...drawn];
    const picks = names.map(name => schema.series.findIndex(series => series.name === name));
    const place = (name: string): number => names.indexOf(name);
    this.table = new Table(picks, schema.capacity);
    for (const [source, tag] of tagged) {
      if (tag.kind === 'tiles') {
        this.tiles.push(new Tiles(source, tag, schema, makeImage));
      } else if (tag.kind === 'lines' || tag.kind === 'means') {
        const { interval, origin } = schema;
        const lines = new Lines(source, tag, this.table, interval, origin, place);
        lines.setWindow(this.windowSeconds);
        this.lines.push(lines);
      } else if (tag.kind === 'markers') {
        this.markers.push(new Markers(source, tag, schema));
      } else if (tag.kind === 'bands') {
        this.markers.push(new Bands(source, tag, schema, this.table, place));
      }
    }
  }

  /** Take rows of this feed's schema, in any order, known ones too. */
  add(rows: Rows): void {
    if (rows.schema.version !== this.schema.version || rows.seq.length === 0) {
      return;
    }
    const fresh = this.table.add(rows);
    if (fresh.length === 0) {
      return;
    }
    for (const tiles of this.tiles) {
      tiles.add(rows, fresh);
    }
    const last = fresh[fresh.length - 1]!;
    const seq = rows.seq[last.index]!;
    if (this.newest === null || seq > this.newest.seq) {
      const width = rows.schema.series.length;
      const values = rows.values.slice(last.index * width, (last.index + 1) * width);
      this.newest = { seq, time: last.time, values };
    }
    this.schedule();
  }

  setEvents(events: readonly MonitorEvent[]): void {
    if (events !== this.events) {
      this.events = events;
      this.schedule();
    }
  }

  /** How many seconds the charts show. */
  setWindow(seconds: number): void {
    this.windowSeconds = seconds;
    this.period = this.shortest;
    this.lines.forEach(lines => lines.setWindow(seconds));
    if (this.newest !== null) {
      this.schedule();
    }
  }

  setVisible(visible: boolean): void {
    this.visible = visible;
    if (!visible) {
      clearTimeout(this.timer);
      this.timer = undefined;
    } else if (this.dirty) {
      this.schedule();
    }
  }

  /** Leave the page's thread alone for so many milliseconds: a click waits for its answer. */
  hold(ms: number): void {
    this.heldUntil = performance.now() + ms;
    if (this.timer !== undefined) {
      clearTimeout(this.timer);
      this.timer = undefined;
      this.schedule();
    }
  }

  dispose(): void {
    clearTimeout(this.timer);
    this.visible = false;
  }

  private schedule(): void {
    this.dirty = true;
    if (this.visible && this.timer === undefined) {
      const due = Math.max(this.drawnAt + this.period, this.heldUntil);
      const wait = Math.max(0, due - performance.now());
      this.timer = setTimeout(() => this.draw(), wait);
    }
  }

  private draw(): void {
    this.timer = undefined;
    this.dirty = false;
    const started = performance.now();
    this.drawnAt = started;
    this.tiles.forEach(tiles => tiles.flush());
    this.lines.forEach(lines => lines.flush());
    this.moveRange();
    this.mark();
    this.drawn = this.newest;
    this.options.onDraw?.();
    this.draws.count += 1;
    const busy = performance.now() - started;
    this.draws.busy += busy;
    // Bokeh paints in the next frame, after this callback and before the message that it posts.
    requestAnimationFrame(() => {
      const frame = performance.now();
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        port1.close();
        const cost = busy + performance.now() - frame;
        this.draws.cost += cost;
        const wanted = Math.max(this.shortest, (this.windowSeconds * 1000) / STEPS, cost / SHARE);
        this.period = Math.max(this.shortest, Math.min(LONGEST_MS, wanted));
      };
      port2.postMessage(null);
    });
  }

  private moveRange(): void {
    if (this.range !== null && this.newest !== null) {
      const end = (this.schema.origin + this.newest.time + this.schema.interval) * 1000;
      this.range.setv({ start: end - this.windowSeconds * 1000, end });
    }
  }

  private mark(): void {
    if (this.events.length > 0) {
      const view = viewOf(this.range, this.chart);
      this.markers.forEach(markers => markers.flush(this.events, view));
    }
  }
}
