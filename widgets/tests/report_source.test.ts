// @vitest-environment node

import { deflateSync } from 'node:zlib';

import { describe, expect, it } from 'vitest';

import { WireError, type Rows } from '../src/stream/page_messages.js';
import { decodeSession, ReportSource } from '../src/stream/report_source.js';
import { makeSchema } from './fakes.js';

/** The lowest bytes of all numbers, then the next ones. */
function planes(numbers: Float32Array | Float64Array): Uint8Array {
  const bytes = new Uint8Array(numbers.buffer);
  const width = numbers.BYTES_PER_ELEMENT;
  return Uint8Array.from(bytes, (_, k) => {
    const [plane, row] = [Math.floor(k / numbers.length), k % numbers.length];
    return bytes[row * width + plane]!;
  });
}

const TIMES = Float64Array.of(0.05, 0.15, 12345.678);
const STEPS = Float32Array.of(1.25, NaN, 3e-7);

function session(changes: Record<string, unknown> = {}): string {
  const table = deflateSync(
    Buffer.concat([planes(TIMES), Uint8Array.of(7, 255, 100), planes(STEPS)])
  );
  return JSON.stringify({
    bokeh: '3.9.2',
    item: { root_id: 'p1' },
    schema: makeSchema(['cpu/0/busy', 'loader/l/wait']),
    events: [{ id: 1, kind: 'mark', time: 2, label: '</script>' }],
    rows: 3,
    percent: [true, false],
    zone_ms: 3_600_000,
    table: table.toString('base64'),
    ...changes
  });
}

describe('a session in the page', () => {
  it('has its rows, whole per cent and numbers as they were measured', async () => {
    const source = new ReportSource(decodeSession(session()));
    const heard: (Rows | number)[] = [];
    source.opened.on(schema => heard.push(schema.version));
    source.arrived.on(rows => heard.push(rows));
    await source.open();
    const { rows, events } = await source.history();
    expect(heard).toEqual([3, rows]);
    expect(rows.seq).toEqual(Float64Array.of(1, 2, 3));
    expect(rows.time).toEqual(TIMES);
    expect(rows.values).toEqual(Float32Array.of(7, 1.25, NaN, NaN, 100, STEPS[2]!));
    expect(events).toEqual([{ id: 1, kind: 'mark', time: 2, label: '</script>' }]);
    expect(await source.document()).toEqual({
      schema: 3,
      bokeh: '3.9.2',
      item: { root_id: 'p1' }
    });
  });

  it('may have no row', async () => {
    const table = deflateSync(Buffer.alloc(0)).toString('base64');
    const source = new ReportSource(decodeSession(session({ rows: 0, table })));
    expect((await source.history()).rows.values).toHaveLength(0);
  });

  it('that is cut short is an error', async () => {
    const source = new ReportSource(decodeSession(session({ rows: 4 })));
    await expect(source.history()).rejects.toThrow(WireError);
    expect(() => decodeSession('{"rows": 3}')).toThrow(WireError);
  });
});
