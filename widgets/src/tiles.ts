/** Fills the sources tagged `tiles`: heatmaps as a ring of images on the absolute time grid (mirrors report/fill.py). */

import type { BokehSource, Image } from './bokeh.js';
import { GAP } from './lines.js';
import type { Fresh } from './table.js';
import type { Rows, Schema } from './wire.js';

export const MISSING = 255;

export interface TilesTag {
  readonly kind: 'tiles';
  /** Series, the lowest row first. */
  readonly rows: readonly string[];
  readonly slots: number;
}

export type MakeImage = (rows: number, slots: number) => Image;

export class Tiles {
  private readonly columns: readonly number[];
  private readonly images: Image[] = [];
  /** Which stretch of the time grid each tile shows; -1 for none yet. */
  private readonly stretch: number[] = [];
  private readonly dirty = new Set<number>();
  private shown = false;

  constructor(
    private readonly source: BokehSource,
    private readonly tag: TilesTag,
    private readonly schema: Schema,
    makeImage: MakeImage
  ) {
    const index = new Map(schema.series.map((series, i) => [series.name, i]));
    this.columns = tag.rows.map(name => index.get(name) ?? -1);
    // One more than the capacity fills, as the oldest and the newest tile are in use in part.
    const count = Math.ceil(schema.capacity / tag.slots) + 1;
    for (let i = 0; i < count; i += 1) {
      this.images.push(makeImage(tag.rows.length, tag.slots).fill(MISSING));
      this.stretch.push(-1);
    }
  }

  add(rows: Rows, fresh: readonly Fresh[]): void {
    const { interval } = this.schema;
    for (const { index, time, before } of fresh) {
      const slot = Math.floor(time / interval);
      this.write(slot, rows, index, false);
      // Rows that jitter about a slot's edge leave one empty; that is no gap.
      const skipped = before !== null && Math.floor(before / interval) === slot - 2;
      if (skipped && time - before <= GAP * interval) {
        this.write(slot - 1, rows, index, true);
      }
    }
  }

  /** Bring the source up to the images: only tiles that changed are drawn anew. */
  flush(): void {
    if (this.dirty.size === 0) {
      return;
    }
    if (!this.shown) {
      this.source.data = this.data();
      this.shown = true;
    } else {
      const x = this.source.data.x as number[];
      for (const tile of this.dirty) {
        x[tile] = this.start(tile);
      }
      this.source.patching.emit([...this.dirty]);
    }
    this.dirty.clear();
  }

  private write(slot: number, rows: Rows, index: number, onlyIfEmpty: boolean): void {
    const { slots } = this.tag;
    const stretch = Math.floor(slot / slots);
    const tile = stretch % this.images.length;
    const image = this.images[tile]!;
    if (this.stretch[tile]! > stretch) {
      return; // A late row from before the oldest tile.
    }
    if (this.stretch[tile] !== stretch) {
      this.stretch[tile] = stretch;
      image.fill(MISSING);
    }
    const offset = slot - stretch * slots;
    const base = index * rows.schema.series.length;
    for (let row = 0; row < this.columns.length; row += 1) {
      const column = this.columns[row]!;
      const place = row * slots + offset;
      if (!onlyIfEmpty || image[place] === MISSING) {
        image[place] = column < 0 ? MISSING : percent(rows.values[base + column]!);
      }
    }
    this.dirty.add(tile);
  }

  private data(): BokehSource['data'] {
    const { slots, rows } = this.tag;
    return {
      image: this.images,
      x: this.images.map((_, tile) => this.start(tile)),
      y: this.images.map(() => 0),
      dw: this.images.map(() => slots * this.schema.interval * 1000),
      dh: this.images.map(() => rows.length)
    };
  }

  /** Where a tile begins, in ms since 1970; NaN (not drawn) while it is not in use. */
  private start(tile: number): number {
    const stretch = this.stretch[tile]!;
    const { origin, interval } = this.schema;
    return stretch < 0 ? NaN : (origin + stretch * this.tag.slots * interval) * 1000;
  }
}

function percent(value: number): number {
  return Number.isFinite(value) ? Math.floor(Math.min(100, Math.max(0, value)) + 0.5) : MISSING;
}
