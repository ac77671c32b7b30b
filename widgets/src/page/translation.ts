/**
 * Rows of one schema, reordered for another schema of the same session.
 *
 * Beside a loop that fills the machine the charts of a new schema take seconds to be made; until then the old charts
 * show the new rows.
 */

import type { Rows, Schema } from '../stream/page_messages.js';

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
