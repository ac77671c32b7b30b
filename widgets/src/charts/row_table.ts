/** The newest rows of the series that are drawn as lines, ordered by number, however they arrive. */

import type { Rows } from '../stream/page_messages.js';

/** Rows that are more than this many intervals apart, by the longer of theirs, have a gap between them. */
export const GAP = 1.5;

/** The series of the seconds that each row covers. */
export const INTERVAL = 'sample/interval';

/** When a row was taken, and how many seconds it covers. */
export interface Moment {
  readonly time: number;
  readonly interval: number;
}

/** A row of a batch that the table did not have. */
export interface Fresh extends Moment {
  /** Its index in the batch. */
  readonly index: number;
  /** The rows that it was put between; null where there is none. */
  readonly before: Moment | null;
  readonly after: Moment | null;
}

/** Whether a gap lies between two neighbours. */
export function gapBetween(one: Moment, next: Moment): boolean {
  return next.time - one.time > GAP * Math.max(one.interval, next.interval);
}

/** How much longer than its capacity a table may get, so that dropping old rows costs little. */
const SLACK = 1.2;

export class Table {
  seq: number[] = [];
  time: number[] = [];
  /** Seconds that each row covers. */
  interval: number[] = [];
  readonly columns: readonly number[][];
  /** Grows when rows were put between others or dropped: what was derived by index holds no more. */
  revision = 0;
  /** How many rows have been dropped in all. */
  dropped = 0;

  /**
   * @param picks - which column of the batches each column of the table takes; -1 for none
   * @param capacity - rows that are kept at least
   * @param interval - seconds that a row covers where it does not say
   */
  constructor(
    private readonly picks: readonly number[],
    private readonly capacity: number,
    private readonly nominal: number
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
    const covers = rows.schema.series.findIndex(({ name }) => name === INTERVAL);
    for (let i = 0; i < rows.seq.length; i += 1) {
      const seq = rows.seq[i]!;
      const at = this.place(seq);
      if (this.seq[at] === seq) {
        continue;
      }
      const time = rows.time[i]!;
      const interval = covers < 0 ? this.nominal : this.covered(rows.values[i * width + covers]!);
      const [before, after] = [at > 0 ? this.moment(at - 1) : null, this.moment(at)];
      this.put(at, seq, time, interval, rows.values, i * width);
      fresh.push({ index: i, time, interval, before, after });
    }
    if (this.length > this.capacity * SLACK) {
      const old = this.length - this.capacity;
      for (const column of [this.seq, this.time, this.interval, ...this.columns]) {
        column.splice(0, old);
      }
      this.dropped += old;
    }
    return fresh;
  }

  /** Whether a gap lies before a row; never before the first. */
  afterGap(i: number): boolean {
    const longer = Math.max(this.interval[i - 1]!, this.interval[i]!);
    return i > 0 && this.time[i]! - this.time[i - 1]! > GAP * longer;
  }

  /** The first row not before a time. */
  since(time: number): number {
    return lowest(this.time, time);
  }

  private moment(at: number): Moment | null {
    return at < this.length ? { time: this.time[at]!, interval: this.interval[at]! } : null;
  }

  private put(
    at: number,
    seq: number,
    time: number,
    interval: number,
    values: Float32Array,
    base: number
  ): void {
    const { picks, columns } = this;
    const last = at === this.length;
    if (last) {
      this.seq.push(seq);
      this.time.push(time);
      this.interval.push(interval);
    } else {
      this.seq.splice(at, 0, seq);
      this.time.splice(at, 0, time);
      this.interval.splice(at, 0, interval);
      this.revision += 1;
    }
    for (let k = 0; k < picks.length; k += 1) {
      const pick = picks[k]!;
      const value = pick < 0 ? NaN : values[base + pick]!;
      if (last) {
        columns[k]!.push(value);
      } else {
        columns[k]!.splice(at, 0, value);
      }
    }
  }

  /** An interval as the row says it, without the digits that it got as a float32. */
  private covered(seconds: number): number {
    return seconds > 0 ? Math.floor(seconds * 1e6 + 0.5) / 1e6 : this.nominal;
  }

  /** Where a number stands or would stand. */
  private place(seq: number): number {
    const { length } = this;
    return length === 0 || this.seq[length - 1]! < seq ? length : lowest(this.seq, seq);
  }
}

/** The first index of an ascending list whose value is not below `value`. */
function lowest(ascending: readonly number[], value: number): number {
  let low = 0;
  let high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle]! < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}
