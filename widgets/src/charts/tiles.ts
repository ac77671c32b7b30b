/** Fills the sources tagged `tiles`: heatmaps as images on the absolute time grid, of which the newest are kept. */

import type { BokehSource, Image } from './bokeh_api.js';
import { gapBetween, type NewRow, type Moment } from './row_table.js';
import type { Rows, Schema } from '../stream/page_messages.js';

export const MISSING = 255;

export interface TilesTag {
  readonly kind: 'tiles';
  /** Series, the lowest row first. */
  readonly rows: readonly string[];
  readonly slots: number;
  /** The colours go from 0 to the high values that there are, and not to 100 %. */
  readonly scale?: 'auto';
  /** The value of the last colour then, in the rows' unit; set here, read by the hover. */
  high?: number;
}

export type MakeImage = (rows: number, slots: number) => Image;

/** The claims of a row on a slot, the weakest first: the slot lies between two rows without a gap, in the row's interval, at its time. */
const [NONE, BETWEEN, COVERED, OWN] = [0, 1, 2, 3] as const;

interface Tile {
  /** Its place in the source's columns. */
  readonly number: number;
  /** The span of the time grid that it shows; -1 for none yet. */
  span: number;
  image: Image;
  /** The values themselves, where the scale of the colours changes. */
  raw: Float32Array | null;
  /** For each slot, the claim and the time of the row that has it. */
  readonly claims: Uint8Array;
  readonly times: Float64Array;
}

export class Tiles {
  private readonly columns: Int32Array;
  private readonly tiles: Tile[] = [];
  private readonly bySpan = new Map<number, Tile>();
  /** The source's column: a tile that is not in use shares an image of one cell. */
  private readonly images: Image[];
  private readonly dirty = new Set<number>();
  private readonly scale: Scale | null;
  private shown = false;

  constructor(
    readonly source: BokehSource,
    private readonly tag: TilesTag,
    private readonly schema: Schema,
    private readonly makeImage: MakeImage
  ) {
    const index = new Map(schema.series.map((series, i) => [series.name, i]));
    this.scale = tag.scale === 'auto' ? new Scale() : null;
    this.columns = Int32Array.from(tag.rows, name => index.get(name) ?? -1);
    const nothing = makeImage(1, 1).fill(MISSING);
    // One more than the capacity fills, as the oldest and the newest tile are in use in part.
    const count = Math.ceil(schema.capacity / tag.slots) + 1;
    for (let number = 0; number < count; number += 1) {
      const [claims, times] = [new Uint8Array(tag.slots), new Float64Array(tag.slots)];
      this.tiles.push({ number, span: -1, image: nothing, raw: null, claims, times });
    }
    this.images = this.tiles.map(tile => tile.image);
  }

  add(rows: Rows, fresh: readonly NewRow[]): void {
    for (const row of fresh) {
      const { index, time, before, after } = row;
      const slot = this.slotOf(time);
      this.write(slot, OWN, rows, index, time);
      const [first, last] = this.covered(row);
      for (let k = first; k <= last; k += 1) {
        if (k !== slot) {
          this.write(k, COVERED, rows, index, time);
        }
      }
      // Rows that jitter about a slot's edge leave one empty; that is no gap, and the later row stands for it.
      if (before !== null && !gapBetween(before, row)) {
        for (let k = this.slotOf(before.time) + 1; k < slot; k += 1) {
          this.write(k, BETWEEN, rows, index, time);
        }
      }
      if (after !== null && !gapBetween(row, after)) {
        this.bridge(slot, after);
      }
    }
  }

  /** Bring the source up to the images: only tiles that changed are drawn anew. */
  flush(): void {
    if (this.dirty.size === 0) {
      return;
    }
    if (this.scale?.settle()) {
      this.tag.high = this.scale.high;
      this.repaint(this.scale.high);
    }
    if (!this.shown) {
      this.source.data = this.data();
      this.shown = true;
    } else {
      const x = this.source.data.x as number[];
      for (const tile of this.dirty) {
        x[tile] = this.start(this.tiles[tile]!);
      }
      this.source.patching.emit([...this.dirty]);
    }
    this.dirty.clear();
  }

  private slotOf(time: number): number {
    return Math.floor(time / this.schema.interval);
  }

  /** First and last slot whose centre lies in `(time - interval / 2, time + interval / 2]`. */
  private covered({ time, interval }: Moment): [number, number] {
    const grid = this.schema.interval;
    return [
      Math.floor((time - interval / 2) / grid - 0.5) + 1,
      Math.floor((time + interval / 2) / grid - 0.5)
    ];
  }

  private write(slot: number, claim: number, rows: Rows, index: number, time: number): void {
    const tile = this.claim(slot, claim, time);
    if (tile === null) {
      return;
    }
    const { slots } = this.tag;
    const { columns } = this;
    const { image } = tile;
    const base = index * rows.schema.series.length;
    let place = slot - tile.span * slots;
    for (const column of columns) {
      const value = column < 0 ? NaN : rows.values[base + column]!;
      if (tile.raw !== null && this.scale !== null) {
        tile.raw[place] = value;
        this.scale.add(value);
      }
      image[place] = percent(this.scale === null ? value : (100 * value) / this.scale.high);
      place += slots;
    }
  }

  /** Fill the slots from `slot` to those of a later row, which came before, as if that came now. */
  private bridge(slot: number, later: Moment): void {
    const end = this.slotOf(later.time);
    const { slots } = this.tag;
    const from = this.bySpan.get(Math.floor(end / slots));
    for (let k = slot + 1; from !== undefined && k < end; k += 1) {
      const tile = this.claim(k, BETWEEN, later.time);
      for (let row = 0; tile !== null && row < this.columns.length; row += 1) {
        tile.image[row * slots + (k % slots)] = from.image[row * slots + (end % slots)]!;
        if (tile.raw !== null && from.raw !== null) {
          tile.raw[row * slots + (k % slots)] = from.raw[row * slots + (end % slots)]!;
        }
      }
    }
  }

  /** The tile of a slot if a row may have the slot, which it then has; else null. */
  private claim(slot: number, claim: number, time: number): Tile | null {
    const { slots } = this.tag;
    const span = Math.floor(slot / slots);
    const tile = this.bySpan.get(span) ?? this.begin(span);
    if (tile === null) {
      return null;
    }
    const offset = slot - span * slots;
    const had = tile.claims[offset]!;
    if (claim < had || (claim === had && time < tile.times[offset]!)) {
      return null;
    }
    tile.claims[offset] = claim;
    tile.times[offset] = time;
    this.dirty.add(tile.number);
    return tile;
  }

  /** A tile for a span that has none: a free one, or the oldest; null where the span is older than that. */
  private begin(span: number): Tile | null {
    const free = this.tiles[this.bySpan.size];
    const tile = free ?? this.tiles.reduce((a, b) => (a.span < b.span ? a : b));
    if (span < 0 || tile.span > span) {
      return null;
    }
    if (free !== undefined) {
      tile.image = this.images[tile.number] = this.makeImage(this.tag.rows.length, this.tag.slots);
      tile.raw = this.scale === null ? null : new Float32Array(tile.image.length);
    }
    tile.raw?.fill(NaN);
    this.bySpan.delete(tile.span);
    this.bySpan.set(span, tile);
    tile.span = span;
    tile.image.fill(MISSING);
    tile.claims.fill(NONE);
    return tile;
  }

  /** Colour all cells anew: the scale has changed. */
  private repaint(high: number): void {
    for (const { number, image, raw } of this.bySpan.values()) {
      raw?.forEach((value, place) => {
        image[place] = percent((100 * value) / high);
      });
      this.dirty.add(number);
    }
  }

  private data(): BokehSource['data'] {
    const { slots, rows } = this.tag;
    return {
      image: this.images,
      x: this.tiles.map(tile => this.start(tile)),
      y: this.images.map(() => 0),
      dw: this.images.map(() => slots * this.schema.interval * 1000),
      dh: this.images.map(() => rows.length)
    };
  }

  /** Return the begin of a tile, in ms since 1970; NaN (not drawn) while it is not in use. */
  private start({ span }: Tile): number {
    const { origin, interval } = this.schema;
    return span < 0 ? NaN : (origin + span * this.tag.slots * interval) * 1000;
  }
}

const STEPS_PER_OCTAVE = 4;
const OCTAVES = 40;
const HIGHEST = 0.98;

/** Up to which value colours go: most values are below it, whatever the few slowest ones are. */
class Scale {
  high = 1;
  /** The number of values by their logarithm; the lowest is 2^-10. */
  private readonly counts = new Float64Array(STEPS_PER_OCTAVE * OCTAVES);
  private total = 0;

  add(value: number): void {
    if (Number.isFinite(value) && value > 0) {
      const place = Math.floor(STEPS_PER_OCTAVE * (Math.log2(value) + 10));
      this.counts[Math.min(this.counts.length - 1, Math.max(0, place))]! += 1;
      this.total += 1;
    }
  }

  /** Take the scale that fits what was added; whether it is another one. */
  settle(): boolean {
    let below = 0;
    let place = 0;
    for (; place < this.counts.length - 1 && below < HIGHEST * this.total; place += 1) {
      below += this.counts[place]!;
    }
    const high = this.total === 0 ? 1 : 2 ** (place / STEPS_PER_OCTAVE - 10);
    const changed = high !== this.high;
    this.high = high;
    return changed;
  }
}

function percent(value: number): number {
  return Number.isFinite(value) ? Math.floor(Math.min(100, Math.max(0, value)) + 0.5) : MISSING;
}
