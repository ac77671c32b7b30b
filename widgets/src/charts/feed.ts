/**
 * Fills a chart document's named sources from rows and events, by their tags (docs/messages.md, *Documents*).
 *
 * Rows are taken as they come; drawing happens at most four times a second, as thread and machine allow (`Pace`), and
 * only what is on the screen (`Sight`). No chart is known here: a new one needs only sources with a tag. A source of an
 * unknown kind stays empty.
 */

import type { BokehDocument, BokehModel, BokehSource } from './bokeh_api.js';
import { CHART, figuresOf } from './bokeh.js';
import { Lines, type LinesTag } from './lines.js';
import {
  Bands,
  MARKER_LABELS,
  Markers,
  viewOf,
  type BandsTag,
  type MarkersTag
} from './markers.js';
import { Pace } from './pace.js';
import { Sight } from './sight.js';
import { Table, Translation } from './row_table.js';
import { coresOf, mean } from './stats.js';
import { Tiles, type MakeImage, type TilesTag } from './tiles.js';
import type { MonitorEvent, Rows, Schema } from '../stream/page_messages.js';

type Tag = TilesTag | LinesTag | MarkersTag | BandsTag | { readonly kind: 'unknown' };

interface FeedOptions {
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

const PERIOD_MS = 250;
/** Events that somebody has caused and looks for: they are drawn at once. */
const AWAITED = new Set(['switch', 'job-switch', 'mark']);
/** The least that the time axis spans, in seconds. */
const LEAST_SECONDS = 15;

export class Feed {
  /** The newest row that was taken. */
  newest: Newest | null = null;
  /** The newest row that the sources hold. */
  drawn: Newest | null = null;
  /** The row at which the time axis was last put. */
  private ranged: Newest | null = null;
  events: readonly MonitorEvent[] = [];
  /** The number of drawings. */
  readonly draws = { count: 0 };
  /** The period of drawing, and its cost. */
  readonly pace: Pace;

  private readonly table: Table;
  private readonly translation: Translation;
  private readonly sight: Sight;
  /** Columns of the cores that the kernel may use. */
  private readonly cores: readonly number[];
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
  /** The feed itself moves the time axis now. */
  private moving = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    document: BokehDocument,
    private readonly schema: Schema,
    private readonly options: FeedOptions
  ) {
    const { makeImage, period = PERIOD_MS } = options;
    this.pace = new Pace(period);
    this.pace.setWindow(this.windowSeconds);
    this.pace.setDrawing(true);
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
    this.cores = coresOf(schema);
    this.translation = new Translation(schema);
    this.table = new Table(picks, schema.capacity, schema.interval);
    for (const [source, tag] of tagged) {
      if (tag.kind === 'tiles') {
        this.tiles.push(new Tiles(source, tag, schema, makeImage));
      } else if (tag.kind === 'lines' || tag.kind === 'means' || tag.kind === 'stack') {
        const lines = new Lines(source, tag, this.table, schema.origin, place);
        lines.setWindow(this.windowSeconds);
        this.lines.push(lines);
      } else if (tag.kind === 'markers') {
        const labels = [...document.all_models].filter(({ name }) => name === MARKER_LABELS);
        this.markers.push(new Markers(source, tag, schema, labels));
      } else if (tag.kind === 'bands') {
        this.markers.push(new Bands(source, tag, schema, this.table, place));
      }
    }
    this.sight = new Sight(figuresOf(document), () => this.schedule(true));
    // A person moved the time axis, or the charts got another width: labels have other room.
    for (const model of [this.range, this.chart]) {
      model?.change?.connect(() => {
        if (!this.moving && this.newest !== null) {
          this.schedule();
        }
      });
    }
    // Charts that stand before the first row show its time, not that of 1970.
    this.showTime(schema.interval, LEAST_SECONDS);
  }

  /** The number of rows that the charts have. */
  get rows(): number {
    return this.table.length;
  }

  /** Take rows of this feed's schema, or of another one of its session, in any order, known ones too. */
  add(arrived: Rows): void {
    const rows = this.translation.of(arrived);
    if (rows === null || rows.seq.length === 0) {
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
    // The first ones at once: what was drawn before them were empty charts.
    this.schedule(this.drawn === null);
  }

  setEvents(events: readonly MonitorEvent[]): void {
    if (events !== this.events) {
      const shown = this.events.at(-1)?.id ?? 0;
      this.events = events;
      this.schedule(events.some(({ id, kind }) => id > shown && AWAITED.has(kind)));
    }
  }

  /** Set how many seconds the charts show. */
  setWindow(seconds: number): void {
    this.windowSeconds = seconds;
    this.ranged = null;
    this.pace.setWindow(seconds);
    this.lines.forEach(lines => lines.setWindow(seconds));
    if (this.newest !== null) {
      this.schedule();
    }
  }

  /** Show so many times the span of time that is shown now, about the same moment. */
  zoom(factor: number): void {
    const { start, end } = (this.range?.attributes ?? {}) as { start?: number; end?: number };
    if (start !== undefined && end !== undefined) {
      const [middle, half] = [(start + end) / 2, (factor * (end - start)) / 2];
      this.range!.setv({ start: middle - half, end: middle + half });
    }
  }

  /** Bring every chart up to the newest row and paint it now, those out of sight too: for paper. */
  paintAll(): void {
    [...this.tiles, ...this.lines].forEach(filled => filled.flush());
    this.sight.paintAll();
  }

  setVisible(visible: boolean): void {
    this.visible = visible;
    this.pace.setDrawing(visible);
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
    this.setVisible(false);
    this.sight.dispose();
  }

  /** @param now - not only when the next drawing is due */
  private schedule(now = false): void {
    this.dirty = true;
    if (now) {
      clearTimeout(this.timer);
      this.timer = undefined;
    }
    if (this.visible && this.timer === undefined) {
      const due = Math.max(now ? 0 : this.drawnAt + this.pace.period, this.heldUntil);
      const wait = Math.max(0, due - performance.now());
      this.timer = setTimeout(() => this.draw(), wait);
    }
  }

  private draw(): void {
    this.timer = undefined;
    this.dirty = false;
    this.drawnAt = performance.now();
    const drawn = this.pace.measure();
    if (this.newest !== null) {
      this.pace.setLoad(this.cores.length, mean(this.newest.values, this.cores));
    }
    for (const filled of [...this.tiles, ...this.lines]) {
      // What is out of sight keeps, and is caught up with when it comes back.
      if (this.sight.sees(filled.source)) {
        filled.flush();
      }
    }
    this.moveRange();
    this.mark();
    this.drawn = this.newest;
    this.options.onDraw?.();
    this.draws.count += 1;
    drawn();
  }

  /**
   * Let the time axis end at the newest row; a person may have moved it since (a recorded session's can be). In a
   * session's first minute it begins with the session, so that data fill it.
   */
  private moveRange(): void {
    if (this.range !== null && this.newest !== null && this.newest !== this.ranged) {
      this.ranged = this.newest;
      const { interval } = this.schema;
      const measured = this.newest.time - (this.table.time[0] ?? 0) + interval;
      const seconds = Math.min(this.windowSeconds, Math.max(measured, LEAST_SECONDS));
      this.showTime(this.newest.time + interval, seconds);
    }
  }

  /** Let the time axis end at a session time and span so many seconds. */
  private showTime(time: number, seconds: number): void {
    const end = (this.schema.origin + time) * 1000;
    this.moving = true;
    this.range?.setv({ start: end - seconds * 1000, end });
    this.moving = false;
  }

  private mark(): void {
    if (this.events.length > 0) {
      const view = viewOf(this.range, this.chart);
      this.markers.forEach(markers => markers.flush(this.events, view));
    }
  }
}
