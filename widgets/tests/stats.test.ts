import { describe, expect, it } from 'vitest';

import { running } from '../src/stream/connection.js';
import type { AnalysisState } from '../src/analysis/analysis.js';
import { StatsView } from '../src/charts/stats.js';
import type { LoaderState, Schema } from '../src/stream/page_messages.js';
import { makeRows, makeSchema, range } from './fakes.js';
import { FakeSource, training } from './fakesource.js';

const state = new FakeSource().loaders[0]!;
const NAMES = ['cpu/0/busy', 'cpu/1/busy', 'loader/l/images', 'loader/l/wait', 'loader/l/step'];
const LIVE = {
  recorded: null,
  connection: running(0.1),
  loaders: [] as readonly LoaderState[],
  analysis: null as AnalysisState | null,
  busy: true
};

/** The numbers of a session of so many rows, by their labels. */
function shown(
  schema: Schema,
  count: number,
  value: (seq: number, column: number) => number,
  live: Partial<typeof LIVE> = {}
): {
  numbers: Record<string, string>;
  titles: string[];
  lines: (string | null)[];
  el: HTMLElement;
} {
  const view = new StatsView();
  view.take(makeRows(schema, range(1, count), value));
  view.update({ ...LIVE, ...live });
  const tiles = [...view.el.children];
  return {
    el: view.el,
    numbers: Object.fromEntries(
      tiles.map(tile => [
        tile.querySelector('.km-stat-label')!.textContent,
        tile.querySelector('.km-stat-value')!.textContent
      ])
    ),
    titles: tiles.map(tile => tile.getAttribute('title') ?? ''),
    lines: tiles.map(tile => tile.querySelector('path')!.getAttribute('d'))
  };
}

describe('the figures that matter', () => {
  it('are means of two seconds, with what they are of', () => {
    const { numbers, titles, lines } = shown(makeSchema(NAMES), 100, (seq, column) =>
      seq <= 80 ? 1 : [40, 60, 3200, 30, 40][column]!
    );
    expect(numbers).toEqual({
      'images/s': '3,200',
      'waiting for data': '75 %',
      'CPU, 2 cores': '50 %',
      GPU: 'none: not known yet'
    });
    expect(titles.slice(0, 3)).toEqual([
      'images per second of the wall clock, mean of the last 2 s: 20 samples',
      'share of the steps’ time that waits for data, mean of the last 2 s: 20 samples in which a step ended',
      'mean of the last 2 s: 20 samples'
    ]);
    expect(lines[0]).toMatch(/^M[\d.]+,[\d.]+(L[\d.]+,[\d.]+)+$/);
    expect(lines[3]).toBe(null);
  });

  it('count the ranks of a job, too', () => {
    const names = ['cpu/0/busy', 'job/1/images', 'job/1/wait', 'job/1/step'];
    const { numbers } = shown(makeSchema(names), 100, (_, column) => [40, 640, 5, 20][column]!);
    expect(numbers).toMatchObject({ 'images/s': '640', 'waiting for data': '25 %' });
  });

  it('are of the main loader, which they name where there are several', () => {
    const names = ['loader/t/images', 'loader/t/wait', 'loader/t/step'].flatMap(name => [
      name,
      name.replace('/t/', '/v/')
    ]);
    const loaders = [
      { ...state, id: 't', name: 'train' },
      { ...state, id: 'v', name: 'val' }
    ];
    const values = [640, 80, 10, 90, 40, 100];
    const { numbers, titles } = shown(makeSchema(names), 100, (_, column) => values[column]!, {
      loaders,
      analysis: training('t')
    });
    expect(numbers).toMatchObject({ 'images/s, train': '640', 'waiting for data, train': '25 %' });
    expect(titles[0]).toMatch(/^train: images per second of the wall clock, mean of the last 2 s/);
  });

  it('show none once no loop runs, and not the last ones beside those of now', () => {
    const ended = (seq: number, column: number): number =>
      seq <= 50 ? [40, 60, 320, 30, 40][column]! : [1, 1, 0, NaN, NaN][column]!;
    const idle = shown(makeSchema(NAMES), 100, ended, { busy: false });
    expect([idle.numbers['images/s'], idle.numbers['waiting for data']]).toEqual(['–', '–']);
    expect(idle.titles[1]).toContain('no loop runs now');
    // A cell that runs may be in a long step: both are of the same time.
    const { titles } = shown(makeSchema(NAMES), 100, ended);
    expect(titles.slice(0, 2).map(title => /the last (\d+ s)/.exec(title)?.[1])).toEqual([
      '20 s',
      '20 s'
    ]);
  });

  it('weigh a step by its length, and look further back where steps are long', () => {
    const { numbers } = shown(makeSchema(NAMES), 100, (seq, column) =>
      column < 3
        ? 0
        : seq === 60
          ? [0, 0, 0, 900, 1000][column]!
          : seq === 70
            ? [0, 0, 0, 0, 200][column]!
            : NaN
    );
    expect(numbers['waiting for data']).toBe('75 %');
  });

  it('say that nothing is measured yet', () => {
    const { numbers, titles } = shown(makeSchema(NAMES), 3, (_, column) => (column < 2 ? 7 : NaN));
    expect([numbers['images/s'], numbers['waiting for data']]).toEqual(['–', '–']);
    expect(titles[0]).toBe('images per second of the wall clock; no loop runs now');
  });

  it('say of a GPU why it does not tell, and of several how many there are', () => {
    const gpu = { index: 0, name: 'H100', memory_total: 1, reasons: {}, mig: [], throttle: [] };
    const mig = {
      ...makeSchema(NAMES),
      gpus: [{ ...gpu, reasons: { utilisation: 'Not Supported' } }]
    };
    expect(shown(mig, 30, () => 1).numbers.GPU).toBe('none: Not Supported');
    const none = { ...makeSchema(NAMES), gpus: [], gpu_reason: 'no driver' };
    const tiles = [...shown(none, 30, () => 1).el.children] as HTMLElement[];
    expect(tiles.map(tile => tile.hidden)).toEqual([false, false, false, true]);
    const names = [...NAMES, 'gpu/0/utilisation', 'gpu/1/utilisation'];
    const two = { ...makeSchema(names), gpus: [gpu, { ...gpu, index: 1 }] };
    expect(shown(two, 30, (_, column) => column * 10).numbers['2 GPUs']).toBe('55 %');
  });

  it('count only the cores that the kernel may use', () => {
    const schema = { ...makeSchema(NAMES), host: { limits: { cpus: [1] } } };
    expect(shown(schema, 30, (_, column) => (column === 0 ? 0 : 80)).numbers['CPU, 1 core']).toBe(
      '80 %'
    );
  });

  it('are of now: a recorded session and one that is not there have none', () => {
    const view = new StatsView();
    view.update(LIVE);
    expect(view.el.hidden).toBe(true);
    view.take(makeRows(makeSchema(NAMES), range(1, 20)));
    view.update(LIVE);
    expect(view.el.hidden).toBe(false);
    view.update({ ...LIVE, recorded: { seconds: 1 } as never });
    expect(view.el.hidden).toBe(true);
  });
});
