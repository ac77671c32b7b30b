import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { BokehApi, Image } from '../src/charts/bokeh_api.js';
import { embed } from '../src/charts/bokeh.js';
import { Feed } from '../src/charts/feed.js';
import { fakeDocument, FakeModel, makeRows, makeSchema, range } from './fakes.js';

/** Tells what a test says about which elements are on the screen. */
class FakeObserver {
  static all: FakeObserver[] = [];
  readonly seen = new Set<Element>();
  constructor(private readonly call: (entries: unknown[]) => void) {
    FakeObserver.all.push(this);
  }
  observe(el: Element): void {
    this.seen.add(el);
  }
  disconnect(): void {
    this.seen.clear();
  }
  say(target: Element, isIntersecting: boolean): void {
    this.call([{ target, isIntersecting }]);
  }
}

beforeEach(() => {
  vi.useFakeTimers();
  FakeObserver.all = [];
  vi.stubGlobal('IntersectionObserver', FakeObserver);
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

/** A document of two charts, each in a layout of its own, and the feed that fills it. */
async function setUp(): Promise<{
  feed: Feed;
  tiles: FakeModel;
  lines: FakeModel;
  time: FakeModel;
  views: { el: HTMLElement; paused: number }[];
  observer: FakeObserver;
}> {
  const tag = { kind: 'tiles', rows: ['cpu/0/busy'], slots: 10 };
  const tiles = new FakeModel('ColumnDataSource', 't', [tag]);
  const columns = { y0: 'cpu/1/busy' };
  const lines = new FakeModel('ColumnDataSource', 'l', [{ kind: 'lines', columns }]);
  const figures = [tiles, lines].map(source => {
    const renderer = new FakeModel('GlyphRenderer', null, [], { data_source: source });
    return new FakeModel('Figure', null, [], { renderers: [renderer] });
  });
  const time = new FakeModel('Range1d', 'time');
  const document = fakeDocument([tiles, lines, time, ...figures]);
  const views = figures.map(model => {
    const view = {
      model,
      el: globalThis.document.createElement('div'),
      paused: 0,
      pause: () => void (view.paused += 1),
      unpause: () => void (view.paused -= 1)
    };
    return view;
  });
  const root = { model: { type: 'Column', document }, child_views: views };
  const bokeh = { documents: [document], embed: { embed_item: () => ({ roots: [root] }) } };
  await embed(bokeh as unknown as BokehApi, {}, views[0]!.el);
  const feed = new Feed(document, makeSchema(), {
    makeImage: (count, slots): Image =>
      Object.assign(new Uint8Array(count * slots), { shape: [count, slots] })
  });
  return { feed, tiles, lines, time, views, observer: FakeObserver.all[0]! };
}

const draw = (): Promise<unknown> => vi.advanceTimersByTimeAsync(1100);

describe('a chart out of sight', () => {
  it('is neither fed nor painted, and catches up at once when it comes back', async () => {
    const { feed, tiles, lines, views, observer } = await setUp();
    const schema = makeSchema();
    feed.add(makeRows(schema, range(1, 10)));
    await draw();
    expect(lines.data.y0).toHaveLength(10);
    observer.say(views[1]!.el, false);
    expect(views.map(view => view.paused)).toEqual([0, 1]);
    feed.add(makeRows(schema, range(11, 30)));
    await draw();
    expect(tiles.patches.length).toBeGreaterThan(0);
    expect(lines.data.y0).toHaveLength(10);
    observer.say(views[1]!.el, true);
    await vi.advanceTimersByTimeAsync(1);
    expect(views.map(view => view.paused)).toEqual([0, 0]);
    expect(lines.data.y0).toHaveLength(30);
  });

  it('does not move the time axis back when it comes into sight', async () => {
    const { feed, time, views, observer } = await setUp();
    feed.add(makeRows(makeSchema(), range(1, 10)));
    await draw();
    time.setv({ start: 1, end: 2 });
    observer.say(views[1]!.el, false);
    observer.say(views[1]!.el, true);
    await draw();
    expect(time.attributes).toEqual({ start: 1, end: 2 });
    feed.setWindow(300);
    await draw();
    expect(time.attributes.end).toBeGreaterThan(2);
  });

  it('is paused once, however often it is said', async () => {
    const { views, observer } = await setUp();
    observer.say(views[0]!.el, true);
    observer.say(views[0]!.el, false);
    observer.say(views[0]!.el, false);
    expect(views[0]!.paused).toBe(1);
  });

  it('is not watched any more when the feed ends', async () => {
    const { feed, observer } = await setUp();
    expect(observer.seen.size).toBe(2);
    feed.dispose();
    expect(observer.seen.size).toBe(0);
  });
});
