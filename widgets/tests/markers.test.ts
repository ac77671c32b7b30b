import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, it } from 'vitest';

import { apart, Bands, Markers, viewOf, type Label } from '../src/charts/markers.js';
import { Table } from '../src/charts/row_table.js';
import type { MonitorEvent, Schema } from '../src/stream/page_messages.js';
import { FakeModel, makeRows, makeSchema, range } from './fakes.js';

const IMAGES = 'loader/l/images';
const schema = makeSchema([IMAGES]);
const ORIGIN = schema.origin;
const WIDE = viewOf(null, null);

function change(time: number, source: string, target: string, loader = 'l'): MonitorEvent {
  return { id: time * 10, kind: 'switch', time: time + 0.1, first: time, loader, source, target };
}

/** Bands over rows 1 to 100 (0.15 to 10.05 s), of which those up to `until` s had deliveries. */
function bands(events: MonitorEvent[], until = 10, view = WIDE): Record<string, unknown[]> {
  const source = new FakeModel('ColumnDataSource', 'bands');
  const table = new Table([0], 600, 0.1);
  table.add(makeRows(schema, range(1, 100), seq => (seq / 10 + 0.05 <= until ? 1 : 0)));
  const tag = { kind: 'bands', backend: 'synthetic' } as const;
  const place = (name: string): number => (name === IMAGES ? 0 : -1);
  new Bands(source, tag, schema, table, place).flush(events, view);
  const { left, right, label, place: at } = source.data as Record<string, unknown[]>;
  const seconds = (column: unknown[]): number[] =>
    column.map(ms => Math.round((ms as number) - ORIGIN * 1000) / 1000);
  return { left: seconds(left!), right: seconds(right!), label: label!, place: seconds(at!) };
}

describe('bands', () => {
  it('last from the first replayed batch to the next engine’s', () => {
    const events = [
      change(2, 'torchvision', 'synthetic'),
      change(5, 'synthetic', 'dali-cpu'),
      change(7, 'dali-cpu', 'torchvision')
    ];
    expect(bands(events)).toEqual({ left: [2], right: [5], label: ['synthetic'], place: [2] });
  });

  it('that go on last to the newest delivery', () => {
    const events = [change(2, 'torchvision', 'synthetic')];
    expect(bands(events, 6.1).right).toEqual([6.05]);
    expect(bands(events).right).toEqual([9.95]);
    expect(bands(events, 1).right).toEqual([2]);
  });

  it('are each loader’s own', () => {
    const events = [
      change(2, 'torchvision', 'synthetic'),
      change(3, 'torchvision', 'synthetic', 'v'),
      change(4, 'synthetic', 'torchvision')
    ];
    expect(bands(events, 6)).toMatchObject({ left: [2, 3], right: [4, 3] });
  });

  it('are named at the edge once their beginning is out of sight, and not when they are', () => {
    const view = { start: (ORIGIN + 4) * 1000, end: (ORIGIN + 10) * 1000, width: 600 };
    const events = [
      change(1, 'torchvision', 'synthetic'),
      change(2, 'synthetic', 'torchvision'),
      change(3, 'torchvision', 'synthetic')
    ];
    expect(bands(events, 10, view).place).toEqual([NaN, 4]);
  });
});

describe('labels', () => {
  const view = { start: 0, end: 100, width: 1000 };
  const label = (time: number, text = '→ dali-cpu', side: Label['side'] = 'left'): Label => ({
    text,
    time,
    side
  });

  it('that would overlap give way to the newest', () => {
    expect(apart([label(50), label(52), label(54)], view)).toEqual([false, false, true]);
    expect(apart([label(30), label(52), label(54)], view)).toEqual([true, false, true]);
    expect(apart([label(30), label(52), label(54)], { ...view, width: 100_000 })).toEqual([
      true,
      true,
      true
    ]);
  });

  it('are left out where their line is out of sight', () => {
    expect(apart([label(-1), label(50), label(101)], view)).toEqual([false, true, false]);
  });

  it('take the room that their letters and their side take', () => {
    expect(apart([label(40, '→ a'), label(46, '→ b')], view)).toEqual([true, true]);
    expect(apart([label(40, '→ a'), label(46, '→ 訓練の読み込み')], view)).toEqual([false, true]);
    expect(apart([label(40), label(41, 'synthetic', 'right')], view)).toEqual([true, true]);
  });

  it('stand over their line where neither side has room, within the frame', () => {
    const source = new FakeModel('ColumnDataSource', 'markers');
    const glyph = new FakeModel('Text', null);
    const labels = new FakeModel('GlyphRenderer', 'marker-labels', [], { glyph });
    const tag = { kind: 'markers', events: ['job-switch'] } as const;
    const markers = new Markers(source, tag, schema, [labels]);
    const narrow = { start: ORIGIN * 1000, end: (ORIGIN + 60) * 1000, width: 150 };
    const words = 'dali-cpu on 2 ranks';
    for (let at = 0; at <= 60; at += 1) {
      const event = { id: 1, kind: 'job-switch', time: at, label: words };
      markers.flush([event], narrow);
      const { align, offset } = source.data as { align: string[]; offset: number[] };
      const near = (at / 60) * narrow.width + offset[0]!;
      const room = 14 + 6 * words.length;
      const [from, to] = align[0] === 'right' ? [near - room, near] : [near, near + room];
      expect(from, `at ${at}`).toBeGreaterThanOrEqual(-1);
      expect(to, `at ${at}`).toBeLessThanOrEqual(narrow.width + 1);
    }
  });

  it('are cut to the frame', () => {
    const source = new FakeModel('ColumnDataSource', 'markers');
    const tag = { kind: 'markers', events: ['mark'] } as const;
    const narrow = { start: ORIGIN * 1000, end: (ORIGIN + 60) * 1000, width: 104 };
    const event = { id: 1, kind: 'mark', time: 1, label: 'before the learning rate falls' };
    new Markers(source, tag, schema).flush([event], narrow);
    expect(source.data.label).toEqual(['before the le…']);
  });

  it('all have room before the charts are laid out', () => {
    const chart = new FakeModel('Figure', 'cpu');
    expect(apart([label(50), label(50)], viewOf(null, chart))).toEqual([true, true]);
    const time = new FakeModel('Range1d', 'time', [], { start: 1, end: 2 });
    const laid = new FakeModel('Figure', 'cpu', [], { inner_width: 300 });
    expect(viewOf(time, laid)).toEqual({ start: 1, end: 2, width: 300 });
  });
});

interface Case {
  readonly name: string;
  readonly loaders: Schema['loaders'];
  readonly events: readonly MonitorEvent[];
  readonly markers: readonly (readonly [number, string])[];
}

/** Which events cross the charts, when, and under which words. */
const CASES = JSON.parse(readFileSync(join(import.meta.dirname, 'markers.json'), 'utf8')) as Case[];

describe('markers', () => {
  it.each(CASES)('$name', ({ loaders, events, markers }) => {
    const source = new FakeModel('ColumnDataSource', 'markers');
    const tag = { kind: 'markers', events: ['switch', 'mark'] } as const;
    new Markers(source, tag, { ...schema, loaders }).flush(events, WIDE);
    const label = source.data.label as string[];
    const found = Array.from(source.data.time as number[], (time, i) => [
      Math.round(time - ORIGIN * 1000) / 1000,
      label[i]
    ]);
    expect(found).toEqual(markers);
  });

  it('keep their lines where their labels have no room, and are set only when they change', () => {
    const source = new FakeModel('ColumnDataSource', 'markers');
    const tag = { kind: 'markers', events: ['switch'] } as const;
    const markers = new Markers(source, tag, schema);
    const view = { start: ORIGIN * 1000, end: (ORIGIN + 60) * 1000, width: 600 };
    const events = [change(20, 'a', 'b'), change(21, 'b', 'a')];
    markers.flush(events, view);
    const { data } = source;
    expect(data.time).toHaveLength(2);
    expect(data.label).toEqual(['→ b', '→ a']);
    expect(data.place).toEqual([NaN, (ORIGIN + 21) * 1000]);
    markers.flush(events, view);
    expect(source.data).toBe(data);
    markers.flush(events, { ...view, width: 6000 });
    expect(source.data.place).toEqual(data.time);
  });

  it('have their labels left of the line, but where there is no room for that', () => {
    const source = new FakeModel('ColumnDataSource', 'markers');
    const glyph = new FakeModel('Text', null);
    const labels = new FakeModel('GlyphRenderer', 'marker-labels', [], { glyph });
    const tag = { kind: 'markers', events: ['switch'] } as const;
    const markers = new Markers(source, tag, schema, [labels]);
    expect(glyph.attributes).toEqual({
      text_align: { field: 'align' },
      x_offset: { field: 'offset' }
    });
    expect(source.data).toEqual({ time: [], label: [], place: [], align: [], offset: [] });
    const view = { start: ORIGIN * 1000, end: (ORIGIN + 60) * 1000, width: 600 };
    markers.flush([change(2, 'a', 'b'), change(30, 'b', 'a')], view);
    expect(source.data.align).toEqual(['left', 'right']);
    expect(source.data.offset).toEqual([5, -5]);
    expect(source.data.place).toEqual(source.data.time);
  });
});
