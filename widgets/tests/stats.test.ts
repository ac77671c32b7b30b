import { describe, expect, it } from 'vitest';

import { running } from '../src/stream/connection.js';
import { StatsView } from '../src/charts/stats.js';
import type { Schema } from '../src/stream/page_messages.js';
import { makeRows, makeSchema, range } from './fakes.js';

const NAMES = ['cpu/0/busy', 'cpu/1/busy', 'loader/l/images', 'loader/l/wait', 'loader/l/step'];
const LIVE = { recorded: null, connection: running(0.1) };

/** The numbers of a session of so many rows, by their labels. */
function shown(
  schema: Schema,
  count: number,
  value: (seq: number, column: number) => number
): {
  numbers: Record<string, string>;
  titles: string[];
  lines: (string | null)[];
  el: HTMLElement;
} {
  const view = new StatsView();
  view.take(makeRows(schema, range(1, count), value));
  view.update(LIVE);
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
      'mean of 2 s: 20 samples',
      'mean of 2 s: 20 samples in which a step ended',
      'mean of 2 s: 20 samples'
    ]);
    expect(lines[0]).toMatch(/^M[\d.]+,[\d.]+(L[\d.]+,[\d.]+)+$/);
    expect(lines[3]).toBe(null);
  });

  it('count the ranks of a job, too', () => {
    const names = ['cpu/0/busy', 'job/1/images', 'job/1/wait', 'job/1/step'];
    const { numbers } = shown(makeSchema(names), 100, (_, column) => [40, 640, 5, 20][column]!);
    expect(numbers).toMatchObject({ 'images/s': '640', 'waiting for data': '25 %' });
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
    expect(titles[0]).toBe('nothing measured yet');
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
