/** Fills the sources tagged `lines`, `means` and `stack` (docs/messages.md, *Documents*). */

import type { BokehSource, Columns } from './bokeh_api.js';
import type { Table } from './row_table.js';

/** Rows that a source holds beyond those that are seen, so that a line does not end at the chart's edge. */
const MARGIN = 20;

export interface LinesTag {
  readonly kind: 'lines' | 'means' | 'stack';
  /** Column of the source to series. */
  readonly columns: Readonly<Record<string, string>>;
  /** `means` only: seconds that each value is the mean of. */
  readonly seconds?: number;
  /** `stack` only: columns of the source that stand above each other, the lowest first. */
  readonly stacked?: readonly string[];
}

export class Lines {
  private readonly names: readonly string[];
  private readonly picks: readonly number[];
  /** Rows of the table, counted from its very first, that the source has. */
  private done = 0;
  private revision = -1;
  private seconds = Infinity;

  /** @param place - the table's column of a series */
  constructor(
    readonly source: BokehSource,
    private readonly tag: LinesTag,
    private readonly table: Table,
    private readonly origin: number,
    place: (series: string) => number
  ) {
    this.names = Object.keys(tag.columns);
    this.picks = Object.values(tag.columns).map(place);
  }

  /** Hold the rows of the newest `seconds`. */
  setWindow(seconds: number): void {
    this.seconds = seconds;
    this.revision = -1;
  }

  /** Bring the source up to the table. */
  flush(): void {
    const { table } = this;
    const end = table.dropped + table.length;
    const from = this.first();
    const next = this.done - table.dropped;
    if (this.revision !== table.revision || next < from) {
      this.source.data = this.points(from);
      this.revision = table.revision;
    } else if (this.done < end) {
      // A line costs as many points as its source has, seen or not.
      let points = table.length - from;
      for (let i = from; i < table.length; i += 1) {
        points += table.afterGap(i) ? this.perGap : 0;
      }
      this.source.stream(this.points(next), points);
    }
    this.done = end;
  }

  /** Points of a gap: areas end at the ground at both of its edges. */
  private get perGap(): number {
    return this.tag.kind === 'stack' ? 2 : 1;
  }

  /** The first row that the source is to hold. */
  private first(): number {
    const { time, length } = this.table;
    return Math.max(0, this.table.since((time[length - 1] ?? 0) - this.seconds) - MARGIN);
  }

  /** The source's columns from row `from` on, with a row of NaN in each gap. */
  private points(from: number): Columns {
    const { table } = this;
    const { time } = table;
    const data: Record<string, number[]> = { time: [] };
    const out = this.names.map(name => (data[name] = []) as number[]);
    const averages = this.picks.map(pick => this.tag.kind === 'means' && this.means(pick, from));
    for (let i = from; i < time.length; i += 1) {
      if (table.afterGap(i)) {
        const [before, after] = [time[i - 1]!, time[i]!];
        const edges = this.tag.kind === 'stack' ? [before, after] : [(before + after) / 2];
        for (const edge of edges) {
          data.time!.push(this.milliseconds(edge));
          out.forEach(column => column.push(NaN)); // which is the ground for what is stacked
        }
      }
      data.time!.push(this.milliseconds(time[i]!));
      out.forEach((column, k) => {
        const means = averages[k]!;
        column.push(means === false ? table.columns[this.picks[k]!]![i]! : means[i - from]!);
      });
    }
    this.addUp(data);
    return data;
  }

  /** Let each stacked column begin where the one below it ends; what is missing takes nothing. */
  private addUp(data: Columns): void {
    let below: ArrayLike<number> | null = null;
    for (const name of this.tag.stacked ?? []) {
      const column = data[name] as number[];
      for (let i = 0; i < column.length; i += 1) {
        const value = column[i]!;
        column[i] = (Number.isFinite(value) ? value : 0) + (below === null ? 0 : below[i]!);
      }
      below = column;
    }
  }

  /** For each row from `from` on, the mean of what is there in the last `seconds`, not from beyond a gap. */
  private means(pick: number, from: number): number[] {
    const { time, columns } = this.table;
    const values = columns[pick]!;
    const seconds = this.tag.seconds ?? 0;
    const result: number[] = [];
    for (let i = from; i < time.length; i += 1) {
      let sum = 0;
      let count = 0;
      for (let j = i; j >= 0 && time[j]! > time[i]! - seconds; j -= 1) {
        if (Number.isFinite(values[j]!)) {
          sum += values[j]!;
          count += 1;
        }
        if (this.table.afterGap(j)) {
          break;
        }
      }
      result.push(count > 0 ? sum / count : NaN);
    }
    return result;
  }

  private milliseconds(time: number): number {
    return (this.origin + time) * 1000;
  }
}
