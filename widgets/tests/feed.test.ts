import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { BokehDocument, Image } from '../src/charts/bokeh_api.js';
import { Feed } from '../src/charts/feed.js';
import { fakeDocument, FakeModel, makeRows, makeSchema, range } from './fakes.js';

const SLOTS = 10;

type Name = 'tiles' | 'lines' | 'means' | 'stack' | 'markers' | 'bands' | 'other' | 'time';

/** A document with a source of each kind, and one of a kind that this feed does not know. */
function chart(): Record<Name, FakeModel> {
  const source = (name: string, tag: unknown): FakeModel =>
    new FakeModel('ColumnDataSource', name, [tag]);
  const columns = { y0: 'loader/l/wait', y1: 'not/measured' };
  return {
    tiles: source('t', { kind: 'tiles', rows: ['cpu/1/busy', 'cpu/0/busy', 'x'], slots: SLOTS }),
    lines: source('l', { kind: 'lines', columns }),
    means: source('a', { kind: 'means', columns, seconds: 0.45 }),
    stack: source('s', {
      kind: 'stack',
      columns: { y0: 'cpu/0/busy', y1: 'cpu/1/busy', beside: 'loader/l/wait' },
      stacked: ['y0', 'y1']
    }),
    markers: source('m', { kind: 'markers', events: ['switch'] }),
    bands: source('b', { kind: 'bands', backend: 'synthetic' }),
    other: source('o', { kind: 'of-the-future' }),
    time: new FakeModel('Range1d', 'time')
  };
}

function makeImage(rows: number, slots: number): Image {
  return Object.assign(new Uint8Array(rows * slots), { shape: [rows, slots] });
}

function setUp(schema = makeSchema()): ReturnType<typeof chart> & { feed: Feed } {
  const models = chart();
  const document: BokehDocument = fakeDocument(Object.values(models));
  return { ...models, feed: new Feed(document, schema, { makeImage }) };
}

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());
const draw = (): Promise<unknown> => vi.advanceTimersByTimeAsync(260);

/** The tile that begins `seconds` into the session, row by row. */
function tile({ tiles }: { tiles: FakeModel }, seconds: number): number[][] {
  const x = (1_790_000_000 + seconds) * 1000;
  const k = Array.from(tiles.data.x!).findIndex(start => Math.abs((start as number) - x) < 1);
  const image = Array.from(tiles.data.image![k] as Image);
  return [0, 1, 2].map(row => image.slice(row * SLOTS, (row + 1) * SLOTS));
}

describe('areas', () => {
  it('stand on each other, and end at the ground where nothing was measured', async () => {
    const schema = makeSchema();
    const { feed, stack } = setUp(schema);
    const values = (seq: number, k: number): number => (seq === 12 && k === 0 ? NaN : seq + k);
    feed.add(makeRows(schema, [10, 11, 12], values));
    await draw();
    feed.add(makeRows(schema, [20, 21], values));
    await draw();
    expect(Array.from(stack.data.y0!)).toEqual([10, 11, 0, 0, 0, 20, 21]);
    expect(Array.from(stack.data.y1!)).toEqual([21, 23, 13, 0, 0, 41, 43]);
    expect(Array.from(stack.data.beside!)).toEqual([12, 13, 14, NaN, NaN, 22, 23]);
    const time = Array.from(stack.data.time as number[]);
    expect([time[3], time[4]]).toEqual([time[2], time[5]]);
  });
});

describe('tiles', () => {
  it('on both sides of a gap that is longer than all that is kept stay', async () => {
    const schema = makeSchema(); // 600 rows: 61 tiles of a second
    const view = setUp(schema);
    view.feed.add(makeRows(schema, range(1, 50), undefined, seq => seq / 10 + 0.05));
    view.feed.add(makeRows(schema, range(51, 100), undefined, seq => 6100 + seq / 10 + 0.05));
    await draw();
    expect(tile(view, 4)[1]!.slice(0, 3)).toEqual([40, 41, 42]);
    expect(tile(view, 6109)[1]!.slice(0, 3)).toEqual([90, 91, 92]);
  });

  it('hold whole per cent on the absolute time grid, 255 where nothing was measured', async () => {
    const schema = makeSchema();
    const { feed, ...view } = setUp(schema);
    const values = (seq: number, k: number): number =>
      seq === 13 ? NaN : k === 0 ? -5 + seq * 10 : seq + 0.5;
    feed.add(makeRows(schema, [10, 11, 12, 13, 15, 16], values));
    await draw();
    const missing = 255;
    expect(tile(view, 1)).toEqual([
      [11, 12, 13, missing, missing, 16, 17, ...Array.from({ length: 3 }, () => missing)],
      [95, 100, 100, missing, missing, 100, 100, ...Array.from({ length: 3 }, () => missing)],
      Array.from({ length: 10 }, () => missing)
    ]);
    expect(view.tiles.data).toMatchObject({ dw: expect.arrayContaining([1000]) as unknown });
    expect(new Set(view.tiles.data.dh as number[])).toEqual(new Set([3]));
  });

  it('leave no hole where rows jitter about the edge of a slot', async () => {
    const schema = makeSchema();
    const { feed, ...view } = setUp(schema);
    const times: Record<number, number> = { 10: 1.0001, 11: 1.1001, 12: 1.1999, 13: 1.3001 };
    const rows = makeRows(schema, [10, 11, 12, 13], undefined, seq => times[seq]!);
    feed.add(rows);
    await draw();
    expect(tile(view, 1)[1]!.slice(0, 5)).toEqual([10, 12, 13, 13, 255]);
  });

  it('draw only what changed, and use the oldest tile again', async () => {
    const schema = makeSchema(); // 600 rows: 61 tiles
    const { feed, ...view } = setUp(schema);
    feed.add(makeRows(schema, range(0, 604)));
    await draw();
    expect(view.tiles.patches).toEqual([]);
    const before = view.tiles.data;
    feed.add(makeRows(schema, range(605, 609)));
    await draw();
    expect(view.tiles.patches).toEqual([[60]]);
    feed.add(makeRows(schema, range(610, 611)));
    await draw();
    expect(view.tiles.patches).toEqual([[60], [0]]);
    expect(view.tiles.data).toBe(before);
    expect(tile(view, 61)[1]!.slice(0, 4)).toEqual([610 % 101, 611 % 101, 255, 255]);
    expect(Array.from(view.tiles.data.x!)).not.toContain(1_790_000_000_000);
  });
});

describe('tiles with a scale of their own', () => {
  it('are coloured from 0 to the high values that there are, the earlier ones anew', async () => {
    const schema = makeSchema();
    const tag: { high?: number } & Record<string, unknown> = {
      kind: 'tiles',
      rows: ['cpu/0/busy', 'x', 'x'],
      slots: SLOTS,
      scale: 'auto'
    };
    const tiles = new FakeModel('ColumnDataSource', 't', [tag]);
    const document = fakeDocument([tiles, new FakeModel('Range1d', 'time')]);
    const feed = new Feed(document, schema, { makeImage });
    feed.add(makeRows(schema, range(10, 12), () => 40));
    await draw();
    // Up to the end of the value's part of an octave: 2^5.5.
    expect(tag.high).toBeCloseTo(45.25, 1);
    expect(tile({ tiles }, 1)[0]!.slice(0, 4)).toEqual([88, 88, 88, 255]);
    feed.add(makeRows(schema, range(13, 300), () => 400));
    await draw();
    expect(tag.high).toBeCloseTo(430.5, 1);
    expect(tile({ tiles }, 1)[0]!.slice(0, 5)).toEqual([9, 9, 9, 93, 93]);
    // A single slow one is cut, and takes the colours from nobody.
    feed.add(makeRows(schema, [301], () => 100_000));
    await draw();
    expect(tag.high).toBeCloseTo(430.5, 1);
    expect(tile({ tiles }, 30)[0]![1]).toBe(100);
  });
});

describe('lines', () => {
  it('append, with a row of NaN in a gap, and take late rows in their place', async () => {
    const schema = makeSchema();
    const { feed, lines } = setUp(schema);
    feed.add(makeRows(schema, [1, 2, 5]));
    await draw();
    const at = (...seconds: number[]): number[] => seconds.map(s => (1_790_000_000 + s) * 1000);
    expect(lines.data.y0).toEqual([3, 4, NaN, 7]);
    expect(lines.data.y1).toEqual([NaN, NaN, NaN, NaN]);
    Array.from(lines.data.time!).forEach((time, i) =>
      expect(time).toBeCloseTo(at(0.15, 0.25, 0.4, 0.55)[i]!, 0)
    );
    feed.add(makeRows(schema, [6]));
    await draw();
    expect(lines.streams).toHaveLength(1);
    expect(lines.data.y0).toEqual([3, 4, NaN, 7, 8]);
    feed.add(makeRows(schema, [2, 3, 4, 5, 6]));
    await draw();
    expect(lines.data.y0).toEqual([3, 4, 5, 6, 7, 8]);
    feed.add(makeRows(schema, range(1, 6)));
    await draw();
    expect(lines.data.y0).toEqual([3, 4, 5, 6, 7, 8]);
  });

  it('means: of what is there in the last seconds, not from beyond a gap', async () => {
    const schema = makeSchema();
    const { feed, means } = setUp(schema);
    const value = (seq: number): number => (seq === 3 ? NaN : seq);
    feed.add(makeRows(schema, [1, 2, 3, 4, 7, 8], value));
    await draw();
    // A window of 0.45 s holds five rows, but row 7 begins anew.
    expect(means.data.y0).toEqual([1, 1.5, 1.5, 7 / 3, NaN, 7, 7.5]);
    feed.add(makeRows(schema, [9], value));
    await draw();
    expect(means.data.y0).toEqual([1, 1.5, 1.5, 7 / 3, NaN, 7, 7.5, 8]);
  });

  it('hold the window that is shown, and no more', async () => {
    const schema = { ...makeSchema(), capacity: 6000 };
    const { feed, lines } = setUp(schema);
    feed.add(makeRows(schema, range(1, 3000)));
    await draw();
    expect(lines.data.time).toHaveLength(621);
    for (let seq = 3001; seq <= 3100; seq += 1) {
      feed.add(makeRows(schema, [seq]));
    }
    await draw();
    expect(lines.data.time).toHaveLength(621);
    feed.setWindow(300);
    await draw();
    expect(lines.data.time).toHaveLength(3020);
  });

  it('fill the time axis, which grows from fifteen seconds to what was chosen', async () => {
    const schema = makeSchema();
    const { feed, time } = setUp(schema);
    const span = async (last: number): Promise<number> => {
      feed.add(makeRows(schema, range(1, last)));
      await draw();
      const { start, end } = time.attributes as { start: number; end: number };
      expect(end).toBeCloseTo((1_790_000_000 + last / 10 + 0.15) * 1000, 0);
      return (end - start) / 1000;
    };
    expect(await span(20)).toBeCloseTo(15);
    expect(await span(300)).toBeCloseTo(30);
    expect(await span(900)).toBeCloseTo(60);
  });

  it('are bounded however long it runs', async () => {
    const schema = { ...makeSchema(), capacity: 50 };
    const { feed, lines } = setUp(schema);
    feed.setWindow(600);
    for (let seq = 1; seq <= 1000; seq += 1) {
      feed.add(makeRows(schema, [seq]));
      if (seq % 7 === 0) {
        await draw();
      }
    }
    await vi.advanceTimersByTimeAsync(2000);
    const drawn = Array.from(lines.data.y0!);
    expect(drawn.at(-1)).toBe(1002 % 101);
    expect(drawn.slice(-50)).toEqual(range(951, 1000).map(seq => (seq + 2) % 101));
  });
});

describe('the time axis of what does not move', () => {
  it('is zoomed about its middle, and labels are placed anew once a person has moved it', async () => {
    const { feed, time, markers } = setUp();
    const slots: (() => void)[] = [];
    Object.assign(time, { change: { connect: (slot: () => void) => slots.push(slot) } });
    const moved = new Feed(fakeDocument([time, markers]), makeSchema(), {
      makeImage: (count, width): Image =>
        Object.assign(new Uint8Array(count * width), { shape: [count, width] })
    });
    feed.dispose();
    moved.add(makeRows(makeSchema(), range(1, 600)));
    await draw();
    const { start, end } = time.attributes as { start: number; end: number };
    moved.zoom(0.5);
    expect(time.attributes).toMatchObject({
      start: start + (end - start) / 4,
      end: end - (end - start) / 4
    });
    const { count } = moved.draws;
    slots.forEach(slot => slot());
    await draw();
    expect(moved.draws.count).toBe(count + 1);
    moved.dispose();
  });
});

describe('markers', () => {
  it('stand where the first batch came, with the target’s name', async () => {
    const { feed, markers } = setUp();
    const event = { loader: 'l', source: 'torchvision', target: 'dali-cpu' };
    feed.setEvents([
      { id: 1, kind: 'switch-asked', time: 1, ...event },
      { id: 2, kind: 'switch', time: 3, first: 2.5, ...event },
      { id: 3, kind: 'switch', time: 4, ...event, target: 'torchvision' }
    ]);
    await draw();
    expect(markers.data).toEqual({
      time: [1_790_000_002_500, 1_790_000_004_000],
      label: ['→ dali-cpu', '→ torchvision'],
      place: [1_790_000_002_500, 1_790_000_004_000],
      align: ['right', 'right'],
      offset: [-5, -5]
    });
  });

  it('name the loader where there are several', async () => {
    const loaders = [
      { id: 'l', name: 'train', phased: false },
      { id: 'v', name: 'validation', phased: false }
    ];
    const { feed, markers } = setUp({ ...makeSchema(), loaders });
    feed.setEvents([{ id: 1, kind: 'switch', time: 1, loader: 'v', target: 'dali-cpu' }]);
    await draw();
    expect(markers.data.label).toEqual(['validation → dali-cpu']);
  });
});

describe('bands', () => {
  it('grow with what is delivered', async () => {
    const schema = makeSchema(['loader/l/images']);
    const { feed, bands } = setUp(schema);
    const event = { loader: 'l', source: 'torchvision', target: 'synthetic' };
    feed.setEvents([{ id: 1, kind: 'switch', time: 0.5, ...event }]);
    feed.add(makeRows(schema, range(1, 10)));
    await draw();
    const at = (seconds: number): number => 1_790_000_000_000 + seconds * 1000;
    expect(bands.data).toMatchObject({ left: [at(0.5)], label: ['synthetic'] });
    expect(bands.data.right![0]).toBeCloseTo(at(1.05), 0);
    feed.add(makeRows(schema, range(11, 20)));
    await draw();
    expect(bands.data.right![0]).toBeCloseTo(at(2.05), 0);
  });
});

describe('drawing', () => {
  it('happens at most four times a second while frames come at ten', async () => {
    const schema = makeSchema();
    const { feed, time } = setUp(schema);
    for (let seq = 1; seq <= 100; seq += 1) {
      feed.add(makeRows(schema, [seq]));
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(feed.draws.count).toBeGreaterThan(25);
    expect(feed.draws.count).toBeLessThanOrEqual(41);
    expect(feed.newest?.seq).toBe(100);
    await draw();
    expect(feed.drawn?.seq).toBe(100);
    const { start, end } = time.attributes as { start: number; end: number };
    expect(end - start).toBe(15_000);
    expect(end).toBeCloseTo((1_790_000_000 + 10.05 + 0.1) * 1000, 0);
  });

  it('shows at once what somebody has caused, and nothing else', async () => {
    const { feed } = setUp();
    feed.add(makeRows(makeSchema(), [1]));
    await vi.advanceTimersByTimeAsync(10);
    const { count } = feed.draws;
    const asked = { id: 1, kind: 'switch-asked', time: 1, loader: 'l', target: 'dali-cpu' };
    feed.setEvents([asked]);
    await vi.advanceTimersByTimeAsync(10);
    expect(feed.draws.count).toBe(count);
    feed.setEvents([asked, { ...asked, id: 2, kind: 'switch' }]);
    await vi.advanceTimersByTimeAsync(10);
    expect(feed.draws.count).toBe(count + 1);
  });

  it('shows the first rows at once, whenever empty charts were drawn before', async () => {
    const schema = makeSchema();
    const { feed, time } = setUp(schema);
    feed.setEvents([]);
    await vi.advanceTimersByTimeAsync(10);
    expect([feed.draws.count, feed.drawn]).toEqual([1, null]);
    const end = (schema.origin + schema.interval) * 1000;
    expect(time.attributes).toMatchObject({ start: end - 15_000, end });
    feed.add(makeRows(schema, [1]));
    await vi.advanceTimersByTimeAsync(10);
    expect(feed.drawn?.seq).toBe(1);
  });

  it('rests while nobody sees it, and catches up', async () => {
    const schema = makeSchema();
    const { feed, lines, other } = setUp(schema);
    feed.setVisible(false);
    feed.add(makeRows(schema, range(1, 30)));
    await vi.advanceTimersByTimeAsync(5000);
    expect(feed.draws.count).toBe(0);
    expect(feed.newest?.seq).toBe(30);
    feed.setVisible(true);
    await draw();
    expect(lines.data.y0).toHaveLength(30);
    expect(other.data).toEqual({});
  });

  it('keeps out of the way of a click, and goes on', async () => {
    const schema = makeSchema();
    const { feed } = setUp(schema);
    feed.add(makeRows(schema, [1]));
    await draw();
    feed.add(makeRows(schema, [2]));
    feed.hold(1000);
    await vi.advanceTimersByTimeAsync(990);
    expect(feed.draws.count).toBe(1);
    await vi.advanceTimersByTimeAsync(20);
    expect(feed.drawn?.seq).toBe(2);
  });

  it('stops for good when disposed', async () => {
    const schema = makeSchema();
    const { feed } = setUp(schema);
    feed.add(makeRows(schema, [1]));
    feed.dispose();
    await vi.advanceTimersByTimeAsync(5000);
    expect(feed.draws.count).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
  });

  it('goes on with rows of another schema, whose charts are still being made', async () => {
    const schema = makeSchema();
    const { feed, lines, ...view } = setUp(schema);
    feed.add(makeRows(schema, [10]));
    const wider = makeSchema(['gpu/0/power', 'cpu/1/busy', 'loader/m/wait', 'cpu/0/busy']);
    feed.add(makeRows({ ...wider, version: 9 }, [11, 12]));
    feed.add(makeRows({ ...schema, version: 9 }, [13]));
    await draw();
    expect(feed.newest).toMatchObject({ seq: 13, values: Float32Array.from([13, 14, 15]) });
    expect(tile(view, 1).map(row => row.slice(0, 5))).toEqual([
      [11, 12, 13, 14, 255],
      [10, 14, 15, 13, 255],
      [255, 255, 255, 255, 255]
    ]);
    expect(lines.data.y0).toEqual([12, NaN, NaN, 15]);
  });

  it('ignores rows of another session, and those on another time grid', async () => {
    const schema = makeSchema();
    const { feed } = setUp(schema);
    feed.add(makeRows({ ...schema, version: 9, origin: schema.origin + 1 }, [1]));
    feed.add(makeRows({ ...schema, version: 9, interval: 0.5 }, [1]));
    await draw();
    expect(feed.newest).toBeNull();
  });
});
