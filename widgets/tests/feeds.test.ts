/** What a feed makes of rows at changing intervals: which slots they fill and which points they draw. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { Image } from '../src/charts/bokeh_api.js';
import { Feed } from '../src/charts/feed.js';
import { INTERVAL } from '../src/charts/row_table.js';
import type { Rows } from '../src/stream/page_messages.js';
import { fakeDocument, FakeModel, makeSchema } from './fakes.js';

interface Case {
  readonly name: string;
  readonly interval: number;
  readonly rows: readonly (readonly [number, number | null, number | null])[];
  readonly tiles: Readonly<Record<string, number>>;
  readonly lines: readonly (readonly [number, number | null])[];
}

const CASES = JSON.parse(readFileSync(join(import.meta.dirname, 'feeds.json'), 'utf8')) as Case[];
const SLOTS = 10;
const ORIGIN = 1_790_000_000;

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

/** Feed a case's rows, one batch for each list of their places. */
async function feed(
  { interval, rows }: Case,
  batches: number[][]
): Promise<{ tiles: Record<string, number>; lines: [number, number | null][] }> {
  const said = rows.some(row => row[1] !== null);
  const names = ['cpu/0/busy', ...(said ? [INTERVAL] : [])];
  const schema = { ...makeSchema(names), interval };
  const tag = { kind: 'tiles', rows: ['cpu/0/busy', 'gone'], slots: SLOTS };
  const tiles = new FakeModel('ColumnDataSource', 't', [tag]);
  const columns = { y: 'cpu/0/busy' };
  const lines = new FakeModel('ColumnDataSource', 'l', [{ kind: 'lines', columns }]);
  const filled = new Feed(fakeDocument([tiles, lines]), schema, {
    makeImage: (count, slots): Image =>
      Object.assign(new Uint8Array(count * slots), { shape: [count, slots] })
  });
  for (const batch of batches) {
    const chosen = batch.map(i => rows[i]!);
    const batchRows: Rows = {
      schema,
      seq: Float64Array.from(batch, i => i + 1),
      time: Float64Array.from(chosen, row => row[0]),
      values: Float32Array.from(
        chosen.flatMap(([, covers, value]) => [value ?? NaN, covers ?? NaN].slice(0, names.length))
      )
    };
    filled.add(batchRows);
    await vi.advanceTimersByTimeAsync(1100);
  }
  filled.dispose();
  const found: Record<string, number> = {};
  Array.from(tiles.data.x as number[]).forEach((x, k) => {
    const first = Math.round((x / 1000 - ORIGIN) / interval);
    for (let slot = 0; Number.isFinite(x) && slot < SLOTS; slot += 1) {
      const image = tiles.data.image![k] as Image;
      expect(image[SLOTS + slot]).toBe(255);
      if (image[slot] !== 255) {
        found[first + slot] = image[slot]!;
      }
    }
  });
  const values = lines.data.y as number[];
  const points = Array.from(lines.data.time as number[], (time, i): [number, number | null] => [
    Math.round((time / 1000 - ORIGIN) * 1e4) / 1e4,
    Number.isFinite(values[i]) ? Math.round(values[i]! * 1e4) / 1e4 : null
  ]);
  return { tiles: found, lines: points };
}

describe.each(CASES)('$name', one => {
  const all = one.rows.map((_, i) => i);

  it('all at once', async () => {
    expect(await feed(one, [all])).toEqual({ tiles: one.tiles, lines: one.lines });
  });

  it('one by one', async () => {
    const { tiles, lines } = await feed(
      one,
      all.map(i => [i])
    );
    expect(tiles).toEqual(one.tiles);
    expect(lines).toEqual(one.lines);
  });

  it('every other one late', async () => {
    const even = all.filter(i => i % 2 === 0);
    const odd = all.filter(i => i % 2 === 1);
    expect(await feed(one, [even, odd])).toEqual({ tiles: one.tiles, lines: one.lines });
  });
});
