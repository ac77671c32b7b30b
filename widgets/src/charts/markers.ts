/** Fills the sources tagged `markers` and `bands` (docs/messages.md, *Documents*) and keeps their labels apart. */

import type { BokehModel, BokehSource } from './bokeh_api.js';
import type { Table } from './row_table.js';
import type { MonitorEvent, Schema } from '../stream/page_messages.js';

export interface MarkersTag {
  readonly kind: 'markers';
  readonly events: readonly string[];
}

export interface BandsTag {
  readonly kind: 'bands';
  /** While it delivers, a band is drawn. */
  readonly backend: string;
}

/** The visible part of a chart: limits in ms since 1970, width in pixels. */
interface View {
  readonly start: number;
  readonly end: number;
  readonly width: number;
}

/** A label's text, the time (ms) of its line, and on which side of the line it stands; `over`: neither has room. */
export interface Label {
  readonly text: string;
  readonly time: number;
  readonly side: 'left' | 'right' | 'over';
}

/** Pixels: of a letter at 10.5 px, of a wide one (arrows, CJK), beside a text, and between label and line. */
const LETTER = 6;
const WIDE = 11;
const PADDING = 14;
const OFFSET = 5;
/** The most letters of a mark's label beside its line. */
const MOST_LETTERS = 40;

/** Name of the renderers that draw the labels (kernel_monitor/views/style.py). */
export const MARKER_LABELS = 'marker-labels';

export class Markers {
  /** @param labels - the renderers that draw the labels */
  constructor(
    private readonly source: BokehSource,
    private readonly tag: MarkersTag,
    private readonly schema: Schema,
    labels: readonly BokehModel[] = []
  ) {
    if (labels.length > 0) {
      source.data = { time: [], label: [], place: [], align: [], offset: [] };
    }
    for (const { attributes } of labels) {
      (attributes.glyph as BokehModel).setv({
        text_align: { field: 'align' },
        x_offset: { field: 'offset' }
      });
    }
  }

  flush(events: readonly MonitorEvent[], view: View): void {
    const chosen = events.filter(event => this.tag.events.includes(event.kind));
    const time = chosen.map(event => milliseconds(this.schema, first(event)));
    const label = chosen.map(event => fitted(labelOf(this.schema, event), view));
    const sides = time.map((at, i) => sideOf(label[i]!, at, view));
    const labels = time.map((at, i): Label => ({ text: label[i]!, time: at, side: sides[i]! }));
    const shown = apart(labels, view);
    const place = time.map((at, i) => (shown[i] ? at : NaN));
    // Text is aligned at the side of it that is next to the line.
    const align = sides.map(side => (side === 'left' ? 'right' : 'left'));
    const offset = labels.map(one => offsetOf(one, view));
    replace(this.source, { time, label, place, align, offset });
  }
}

/** Labels stand left of their line, where the newest is visible; else right of it, where the frame's edge cuts none. */
function sideOf(text: string, time: number, view: View): Label['side'] {
  const line = pixelOf(time, view);
  const room = OFFSET + textWidth(text);
  if (!(line < room)) {
    return 'left';
  }
  return line + room > view.width ? 'over' : 'right';
}

/** Pixels from a label's line to the side of the label that is next to it; of one over the line, to its left side. */
function offsetOf({ text, time, side }: Label, view: View): number {
  if (side !== 'over') {
    return side === 'left' ? -OFFSET : OFFSET;
  }
  const line = pixelOf(time, view);
  const room = textWidth(text);
  return Math.round(Math.max(0, Math.min(line - room / 2, view.width - room)) - line);
}

function pixelOf(time: number, { start, end, width }: View): number {
  return ((time - start) * width) / (end - start);
}

/** The text, cut to the frame's width. */
function fitted(text: string, { width }: View): string {
  let letters = Array.from(text);
  while (letters.length > 1 && textWidth(text) > width) {
    letters = letters.slice(0, -1);
    text = `${letters.join('')}…`;
  }
  return text;
}

export class Bands {
  /** @param place - the table's column of a series; -1 for none */
  constructor(
    private readonly source: BokehSource,
    private readonly tag: BandsTag,
    private readonly schema: Schema,
    private readonly table: Table,
    private readonly place: (series: string) => number
  ) {}

  flush(events: readonly MonitorEvent[], view: View): void {
    const bands = replayedBands(events, this.tag.backend, (loader, from) =>
      this.last(loader, from)
    );
    const left = bands.map(band => milliseconds(this.schema, band.start));
    const right = bands.map(band => milliseconds(this.schema, band.end));
    const label = bands.map(({ loader }) => `${prefix(this.schema, loader)}${this.tag.backend}`);
    // A band that began before what is visible is named at the edge.
    const stand = left.map((at, i) => Math.min(Math.max(at, view.start), right[i]!));
    const labels = stand.map((at, i): Label => ({ text: label[i]!, time: at, side: 'right' }));
    const shown = apart(labels, view);
    const place = stand.map((at, i) => (shown[i] ? at : NaN));
    replace(this.source, { left, right, label, place });
  }

  /** When the loader last delivered a batch; not before `from`. */
  private last(loader: string, from: number): number {
    const { time, columns } = this.table;
    const images = columns[this.place(`loader/${loader}/images`)] ?? [];
    for (let i = time.length - 1; i >= 0 && time[i]! > from; i -= 1) {
      if (images[i]! > 0) {
        return time[i]!;
      }
    }
    return from;
  }
}

interface Band {
  readonly loader: string;
  readonly start: number;
  readonly end: number;
}

/** From each first batch of a backend to the next engine's, or to its last delivery; s since the session began. */
function replayedBands(
  events: readonly MonitorEvent[],
  backend: string,
  last: (loader: string, from: number) => number
): Band[] {
  const bands: Band[] = [];
  const open = new Map<string, number>();
  const switches = events.filter(event => event.kind === 'switch');
  for (const event of switches.sort((a, b) => first(a) - first(b))) {
    const loader = String(event.loader);
    const start = open.get(loader);
    if (event.target === backend) {
      open.set(loader, start ?? first(event));
    } else if (start !== undefined) {
      bands.push({ loader, start, end: first(event) });
      open.delete(loader);
    }
  }
  for (const [loader, start] of open) {
    bands.push({ loader, start, end: last(loader, start) });
  }
  return bands;
}

/** Return which labels can be shown: of those whose line is visible the newest, then others that fit. */
export function apart(labels: readonly Label[], view: View): boolean[] {
  const { width } = view;
  if (!Number.isFinite(width)) {
    return labels.map(() => true);
  }
  const shown = labels.map(() => false);
  const taken: [number, number][] = [];
  const newestFirst = labels.map((_, i) => i).sort((a, b) => labels[b]!.time - labels[a]!.time);
  for (const i of newestFirst) {
    const { text, time, side } = labels[i]!;
    const line = pixelOf(time, view);
    if (line < 0 || line > width) {
      continue; // What stands beside a line is not cut off with it.
    }
    const room = textWidth(text);
    const from = line + offsetOf(labels[i]!, view) - (side === 'left' ? room : 0);
    if (taken.every(([a, b]) => from + room <= a || from >= b)) {
      taken.push([from, from + room]);
      shown[i] = true;
    }
  }
  return shown;
}

function textWidth(text: string): number {
  let sum = PADDING;
  for (const letter of text) {
    sum += letter.codePointAt(0)! >= 0x2000 ? WIDE : LETTER;
  }
  return sum;
}

/** Return the visible part: a chart's time axis and the width of its frame, once it is laid out. */
export function viewOf(range: BokehModel | null, chart: BokehModel | null): View {
  const { start, end } = (range?.attributes ?? {}) as { start?: number; end?: number };
  const width = chart?.attributes.inner_width;
  return typeof width === 'number' && start !== undefined && end !== undefined
    ? { start, end, width }
    : { start: -Infinity, end: Infinity, width: Infinity };
}

function first(event: MonitorEvent): number {
  return typeof event.first === 'number' ? event.first : event.time;
}

function milliseconds(schema: Schema, time: number): number {
  return (schema.origin + time) * 1000;
}

/** Return the target of a switch, or the label of a mark or of a job's switch. */
function labelOf(schema: Schema, event: MonitorEvent): string {
  if (event.kind === 'switch') {
    return `${prefix(schema, event.loader)}→ ${String(event.target)}`;
  }
  const letters = Array.from(String(event.label));
  return letters.length <= MOST_LETTERS
    ? letters.join('')
    : `${letters.slice(0, MOST_LETTERS - 1).join('')}…`;
}

/** The loader's name where there are several. */
function prefix({ loaders }: Schema, id: unknown): string {
  const name = loaders.find(loader => loader.id === id)?.name ?? String(id);
  return loaders.length > 1 ? `${name} ` : '';
}

/** Give a source data unless it has the same: Bokeh draws everything anew for each. */
function replace(source: BokehSource, data: Record<string, (number | string)[]>): void {
  const same = Object.entries(data).every(([name, column]) => {
    const old = source.data[name];
    return old?.length === column.length && column.every((value, i) => Object.is(value, old[i]));
  });
  if (!same) {
    source.data = data;
  }
}
