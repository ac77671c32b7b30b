/** The newest rows of the series that are drawn as lines, ordered by number, however they arrive. */

import type { Rows } from './wire.js';

/** A row of a batch that the table did not have. */
export interface Fresh {
  /** Its index in the batch. */
  readonly index: number;
  readonly time: number;
  /** Time of the row before it; null when there is none. */
  readonly before: number | null;
}

/** How much longer than its capacity a table may get, so that dropping old rows costs little. */
const SLACK = 1.2;

export class Table {
  seq: number[] = [];
  time: number[] = [];
  readonly columns: readonly number[][];
  /** Grows when rows were put between others or dropped: what was derived by index holds no more. */
  revision = 0;
  /** How many rows have been dropped in all. */
  dropped = 0;

  /**
   * @param picks - which column of the batches each column of the table takes; -1 for none
   * @param capacity - rows that are kept at least
   */
  constructor(
    private readonly picks: readonly number[],
    private readonly capacity: number
  ) {
    this.columns = picks.map(() => []);
  }

  get length(): number {
    return this.seq.length;
  }

  /** Take the rows that are new; returns them in their order. */
  add(rows: Rows): Fresh[] {
    const fresh: Fresh[] = [];
    const width = rows.schema.series.length;
    for (let i = 0; i < rows.seq.length; i += 1) {
      const seq = rows.seq[i]!;
      const at = this.place(seq);
      if (this.seq[at] === seq) {
        continue;
      }
      const time = rows.time[i]!;
      const values = this.picks.map(pick => (pick < 0 ? NaN : rows.values[i * width + pick]!));
      if (at === this.length) {
        this.seq.push(seq);
        this.time.push(time);
        this.columns.forEach((column, k) => column.push(values[k]!));
      } else {
        this.seq.splice(at, 0, seq);
        this.time.splice(at, 0, time);
        this.columns.forEach((column, k) => column.splice(at, 0, values[k]!));
        this.revision += 1;
      }
      fresh.push({ index: i, time, before: at > 0 ? this.time[at - 1]! : null });
    }
    if (this.length > this.capacity * SLACK) {
      const old = this.length - this.capacity;
      this.seq.splice(0, old);
      this.time.splice(0, old);
      this.columns.forEach(column => column.splice(0, old));
      this.dropped += old;
    }
    return fresh;
  }

  /** Where a number stands or would stand. */
  private place(seq: number): number {
    let high = this.length;
    if (high === 0 || this.seq[high - 1]! < seq) {
      return high;
    }
    let low = 0;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.seq[middle]! < seq) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
}
