/** The newest rows of the series that are drawn as lines, ordered by number, however they arrive. */

import type { Rows, Schema } from '../stream/page_messages.js';

/** Rows that are more than this many intervals apart, by the longer of theirs, have a gap between them. */
const GAP = 1.5;

/** The series of the seconds that each row covers. */
export const INTERVAL = 'sample/interval';

/** When a row was taken, and how many seconds it covers. */
export interface Moment {
  readonly time: number;
  readonly interval: number;
}

/** A row of a batch that the table did not have. */
export interface NewRow extends Moment {
  /** Its index in the batch. */
  readonly index: number;
  /** The rows that it was put between; null where there is none. */
  readonly before: Moment | null;
  readonly after: Moment | null;
}

/** Return whether a gap lies between two neighbours. */
export function gapBetween(one: Moment, next: Moment): boolean {
  return next.time - one.time > GAP * Math.max(one.interval, next.interval);
}

/** The factor by which a table may exceed its capacity, so that dropping old rows costs little. */
const SLACK = 1.2;

export class Table {
  seq: number[] = [];
  time: number[] = [];
  /** Seconds that each row covers. */
  interval: number[] = [];
  readonly columns: readonly number[][];
  /** Grows when rows were put between others or dropped: what was derived by index holds no more. */
  revision = 0;
  /** The number of rows that have been dropped in all. */
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
  add(rows: Rows): NewRow[] {
    const fresh: NewRow[] = [];
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

  /** Return whether a gap lies before a row; never before the first. */
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

  /** Return the place of a number, or where it would be put. */
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

/**
 * Reorders rows of one schema for another schema of the same session.
 *
 * Beside a loop that fills the machine the charts of a new schema take seconds to be made; until then the old charts
 * show the new rows.
 */
export class Translation {
  private from: Schema | null = null;
  private picks: readonly number[] = [];

  constructor(private readonly to: Schema) {}

  /** The rows in the order of `to`, NaN for a series that they lack; null if they are on another time grid. */
  of(rows: Rows): Rows | null {
    const { to } = this;
    const { schema } = rows;
    if (schema.version === to.version) {
      return rows;
    }
    if (schema.origin !== to.origin || schema.interval !== to.interval) {
      return null;
    }
    if (this.from !== schema) {
      this.from = schema;
      const places = new Map(schema.series.map(({ name }, place) => [name, place]));
      this.picks = to.series.map(({ name }) => places.get(name) ?? -1);
    }
    const width = schema.series.length;
    const values = new Float32Array(rows.seq.length * this.picks.length);
    for (let row = 0, at = 0; row < rows.seq.length; row += 1) {
      for (const pick of this.picks) {
        values[at++] = pick < 0 ? NaN : rows.values[row * width + pick]!;
      }
    }
    return { ...rows, schema: to, values };
  }
}
