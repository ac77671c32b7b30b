import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { glanceParts, GlanceSource } from '../src/stream/glance.js';
import { GLANCE, NOTICE, PROTOCOL, type Figures } from '../src/stream/protocol.js';
import { FakeMonitor, golden } from './fakes.js';
import { after, soon } from './seen.js';

const NOTHING: Figures = {
  cpu: null,
  gpu: null,
  memory_used: null,
  memory_total: null,
  gpu_memory_used: null,
  gpu_memory_total: null,
  images: null,
  kind: null,
  recording: { state: 'off', path: null, message: '' }
};
const FULL: Figures = {
  cpu: 45.2,
  gpu: 87,
  memory_used: 3.1e9,
  memory_total: 16e9,
  gpu_memory_used: 12.3e9,
  gpu_memory_total: 80e9,
  images: 1204.4,
  kind: 'input-bound',
  recording: { state: 'off', path: null, message: '' }
};
const line = (glance: Figures): string =>
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
    expect(line({ ...NOTHING, images: 0 })).toBe('0 img/s');
    expect(glanceParts(NOTHING)).toEqual([]);
  });

  it('says in full what each part is', () => {
    expect(glanceParts(FULL).map(part => part.meaning)).toEqual([
      'CPU: 45 % busy, mean over the cores',
      'GPU: 87 % utilised, mean over the GPUs',
      'GPU memory: 12.3/80 GB used',
      'The loop that trains: 1,204 images per second, mean of the last 2 s'
    ]);
  });
});

describe('a glance', () => {
  let monitor: FakeMonitor;
  let source: GlanceSource;
  const lines = (): string[] => (source.glance === null ? [] : [line(source.glance)]);
  const asked = (): string[] => monitor.kernel.commands();

  beforeEach(() => {
    monitor = new FakeMonitor();
    monitor.kernel.answers.glance = request => {
      const { running, paused, session } = monitor;
      const { content } = golden('reply-glance');
      request.reply({ ...content, running, paused, session, glance: { ...FULL, cpu: 12 } });
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
    monitor.kernel.publish(GLANCE, { protocol: PROTOCOL, session: 's1', ...FULL, cpu: 50 });
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

  it('has the kind of the verdict now', async () => {
    source.setVisible(true);
    await soon();
    expect(source.glance?.kind).toBe('input-bound');
    monitor.kernel.publish(GLANCE, { protocol: PROTOCOL, session: 's1', ...FULL, kind: null });
    expect(source.glance?.kind).toBeNull();
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
      request.reply({
        ...golden('reply-glance').content,
        running: false,
        sidebar: monitor.kernel.clientId
      });
    source.setVisible(true);
    await soon();
    expect(asked).toBe(1);
  });
});
