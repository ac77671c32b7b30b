import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { LiveVerdict } from '../src/analysis.js';
import { glanceParts, type Glance } from '../src/glance.js';
import { GlanceFeed } from '../src/glancefeed.js';
import { GlanceSource } from '../src/glancesource.js';
import { GLANCE, NOTICE, type Schema } from '../src/wire.js';
import { FakeMonitor, golden, makeRows, makeSchema } from './fakes.js';
import { FakeSource } from './fakesource.js';
import { after, soon } from './seen.js';

const NOTHING = {
  cpu: null,
  gpu: null,
  memory_used: null,
  memory_total: null,
  gpu_memory_used: null,
  gpu_memory_total: null,
  images: null,
  kind: null,
  recording: null
};
const FULL: Glance = {
  session: 's1',
  cpu: 45.2,
  gpu: 87,
  memory_used: 3.1e9,
  memory_total: 16e9,
  gpu_memory_used: 12.3e9,
  gpu_memory_total: 80e9,
  images: 1204.4,
  kind: 'input-bound',
  recording: null
};
const line = (glance: Glance): string =>
  glanceParts(glance)
    .map(part => part.text)
    .join(' · ');

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

describe('the line', () => {
  it('has what there is, in that order', () => {
    expect(line(FULL)).toBe('CPU 45 % · GPU 87 % · 12.3/80 GB · 1,204 img/s');
    expect(line({ ...FULL, gpu: null, gpu_memory_total: null, images: null })).toBe(
      'CPU 45 % · 3.1/16 GB'
    );
    expect(line({ ...NOTHING, session: 's', images: 0 })).toBe('0 img/s');
    expect(glanceParts({ ...NOTHING, session: 's' })).toEqual([]);
  });

  it('says in full what each part is', () => {
    expect(glanceParts(FULL).map(part => part.meaning)).toEqual([
      'CPU: 45 % busy, mean over the cores',
      'GPU: 87 % utilised, mean over the GPUs',
      'GPU memory: 12.3/80 GB used',
      'Loaders: 1,204 images per second'
    ]);
  });
});

const SERIES = [
  ...['cpu/0/busy', 'cpu/1/busy', 'cpu/1/iowait', 'memory/used'],
  ...['gpu/0/utilisation', 'gpu/0/memory_used', 'loader/a/images', 'loader/b/images']
];
const schema: Schema = {
  ...makeSchema(SERIES),
  gpus: [{ index: 0, memory_total: 80e9 }],
  host: { memory_total: 16e9, limits: { cpus: [1], memory: null } }
};

describe('a glance from a dashboard’s rows', () => {
  it('is of the last second, of the cores that may be used', () => {
    const feed = new GlanceFeed();
    const rows = (seq: number) => makeRows(schema, [seq], (n, column) => n + column * 10);
    expect(feed.take('s', rows(1))).toEqual({
      session: 's',
      cpu: 11,
      gpu: 41,
      memory_used: 31,
      memory_total: 16e9,
      gpu_memory_used: 51,
      gpu_memory_total: 80e9,
      images: 61 + 71,
      kind: null,
      recording: null
    });
    vi.advanceTimersByTime(500);
    expect(feed.take('s', rows(2))).toBeNull();
    vi.advanceTimersByTime(500);
    expect(feed.take('s', rows(3))?.images).toBe((62 + 72 + 63 + 73) / 2);
  });

  it('is none where the columns are not sent', () => {
    const feed = new GlanceFeed();
    const few = { ...schema, series: schema.series.slice(4) };
    expect(feed.take('s', makeRows(few, [1]))).toBeNull();
    const contained = { ...schema, host: { limits: { memory: 2e9 } } };
    expect(feed.take('s', makeRows(contained, [1]))).toBeNull();
  });
});

describe('a glance of its own', () => {
  let monitor: FakeMonitor;
  let source: GlanceSource;
  const lines = (): string[] => (source.glance === null ? [] : [line(source.glance)]);
  const asked = (): string[] => monitor.kernel.commands();

  beforeEach(() => {
    monitor = new FakeMonitor();
    monitor.kernel.answers.glance = request => {
      const { running, paused, session } = monitor;
      request.reply({ lease: 20, running, paused, session, glance: { ...FULL, cpu: 12 } });
    };
    source = new GlanceSource(monitor.kernel);
  });

  it('flows while it is visible, and renews its lease', async () => {
    await soon();
    expect(asked()).toEqual([]);
    source.setVisible(true);
    await soon();
    expect(source.state).toBe('running');
    expect(lines()).toEqual(['CPU 12 % · GPU 87 % · 12.3/80 GB · 1,204 img/s']);
    monitor.kernel.publish(GLANCE, { protocol: 1, ...FULL, cpu: 50 });
    expect(lines()[0]).toContain('CPU 50 %');
    await after(10_100);
    expect(asked()).toEqual(['glance', 'glance']);
    source.setVisible(false);
    await after(60_000);
    expect(asked()).toEqual(['glance', 'glance', 'unsubscribe']);
  });

  it('keeps no kernel alive: paused, it asks for nothing until a cell runs', async () => {
    source.setVisible(true);
    await soon();
    monitor.paused = true;
    monitor.notice('paused');
    expect(source.state).toBe('paused');
    await after(120_000);
    expect(asked()).toEqual(['glance']);
    monitor.paused = false;
    monitor.kernel.publish('execute_input', {});
    await soon();
    expect(asked()).toEqual(['glance', 'glance']);
    expect(source.state).toBe('running');
  });

  it('asks a kernel without a monitor once, and again when it says that it has one', async () => {
    monitor.kernel.loaded = false;
    source.setVisible(true);
    await after(60_000);
    expect(source.state).toBe('none');
    expect(asked()).toEqual([]);
    monitor.kernel.loaded = true;
    monitor.notice('started');
    await soon();
    expect(source.state).toBe('running');
    monitor.notice('stopped');
    expect(source.state).toBe('none');
    monitor.kernel.setStatus('autorestarting');
    await after(60_000);
    expect(asked()).toEqual(['glance', 'unsubscribe']);
  });

  it('takes a dashboard’s rows instead, and asks again when they stop', async () => {
    const dashboard = new FakeSource();
    dashboard.session = 's1';
    source.setVisible(true);
    source.borrow(dashboard);
    await soon();
    dashboard.arrived.emit(makeRows(schema, [1], (n, column) => n + column * 10));
    expect(source.glance?.cpu).toBe(11);
    expect(asked()).toEqual(['glance', 'unsubscribe']);
    monitor.kernel.publish(GLANCE, { protocol: 1, ...FULL });
    expect(source.glance?.cpu).toBe(11);
    for (let seq = 2; seq < 102; seq += 1) {
      await after(100);
      dashboard.arrived.emit(makeRows(schema, [seq], (n, column) => n + column * 10));
    }
    expect(asked()).toEqual(['glance', 'unsubscribe']);
    expect(source.glance!.cpu).toBeGreaterThan(100);
    await after(3100);
    expect(asked()).toEqual(['glance', 'unsubscribe', 'glance']);
    expect(source.glance?.cpu).toBe(12);
  });

  it('has the kind of the verdict now, from the kernel and from a dashboard', async () => {
    source.setVisible(true);
    await soon();
    expect(source.glance?.kind).toBe('input-bound');
    const dashboard = new FakeSource();
    dashboard.session = 's1';
    source.borrow(dashboard);
    const verdict = golden('analysis').content.verdict as LiveVerdict;
    const verdicts = new Map([[verdict.loader, verdict]]);
    for (const now of [verdict, null]) {
      // What was said of a loop that has ended still stands among the verdicts.
      dashboard.analysis = { verdicts, verdict: now, diagnosing: null, profiling: null };
      await after(1000);
      dashboard.arrived.emit(makeRows(schema, [1], (n, column) => n + column * 10));
      expect(source.glance?.kind).toBe(now?.kind ?? null);
    }
  });

  it('hears of a sidebar that is wanted of this page, and of no other', async () => {
    let asked = 0;
    source.sidebarAsked.on(() => (asked += 1));
    monitor.kernel.publish(NOTICE, { ...monitor.hello(), kind: 'sidebar', page: 'another' });
    expect(asked).toBe(0);
    monitor.kernel.publish(NOTICE, {
      ...monitor.hello(),
      kind: 'sidebar',
      page: monitor.kernel.clientId
    });
    expect(asked).toBe(1);
    source.answerSidebar();
    await soon();
    expect(monitor.kernel.requests.at(-1)?.message.content).toMatchObject({
      command: 'sidebar',
      args: { page: monitor.kernel.clientId }
    });
  });

  it('hears of it late, with its first answer', async () => {
    let asked = 0;
    source.sidebarAsked.on(() => (asked += 1));
    monitor.kernel.answers.glance = request =>
      request.reply({ lease: 20, running: false, sidebar: monitor.kernel.clientId });
    source.setVisible(true);
    await soon();
    expect(asked).toBe(1);
  });
});
