import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { FakeMonitor, golden } from './fakes.js';
import { after, open, soon } from './seen.js';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

describe('a stream', () => {
  it('opens with the history, then accounts for every frame', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs, opened } = await open(monitor);
    expect(monitor.kernel.commands()).toEqual(['hello', 'subscribe', 'document', 'history']);
    expect(source.connection).toMatchObject({ state: 'running', text: 'Measuring every 0.1 s.' });
    expect(opened).toHaveLength(1);
    expect(seqs).toEqual(Array.from({ length: 20 }, (_, i) => i + 1));
    for (let i = 0; i < 30; i += 1) {
      monitor.frame();
    }
    expect(seqs).toEqual(Array.from({ length: 50 }, (_, i) => i + 1));
    expect(source.stats).toMatchObject({ expected: 30, received: 30, missed: 0, outstanding: 0 });
    expect(source.stats).toMatchObject({ hidden: 20, backfilled: 20 });
    expect(source.stats.ages).toHaveLength(30);
    expect(Math.max(...source.stats.ages)).toBeLessThan(100);
  });

  it('counts a frame once, whatever comes twice', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs } = await open(monitor);
    monitor.frame();
    monitor.seq -= 1;
    monitor.frame();
    expect(source.stats).toMatchObject({ expected: 1, received: 1, missed: 0 });
    expect(seqs).toHaveLength(21);
  });

  it('asks for what it missed, and for nothing else', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs } = await open(monitor);
    monitor.frame();
    monitor.frame({ send: false });
    monitor.frame({ send: false });
    monitor.frame();
    expect(source.stats).toMatchObject({ expected: 4, received: 2, missed: 2, outstanding: 2 });
    await soon();
    expect(monitor.kernel.requests.at(-1)).toMatchObject({
      command: 'history',
      args: { since: 21 }
    });
    expect(seqs.slice(20)).toEqual([21, 24, 22, 23, 24]);
    expect(source.stats).toMatchObject({ missed: 2, backfilled: 22, outstanding: 0, gone: 0 });
  });

  it('does not ask once per gap when every second frame is lost', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    for (let i = 0; i < 40; i += 1) {
      monitor.frame({ send: i % 2 === 1 });
      await after(100);
    }
    await after(1100);
    const asked = monitor.kernel.commands().filter(command => command === 'history').length;
    expect(asked).toBeLessThanOrEqual(1 + 6);
    expect(source.stats).toMatchObject({ received: 20, missed: 20, outstanding: 0 });
    expect(source.stats.backfilled).toBe(20 + 20);
  });

  it('says what is gone for good', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    for (let i = 0; i < 5; i += 1) {
      monitor.frame({ send: false });
    }
    monitor.oldest = 24;
    monitor.frame();
    await soon();
    expect(source.stats).toMatchObject({ missed: 5, gone: 3, backfilled: 22, outstanding: 0 });
  });

  it('keeps frames that overtake the answer to the subscription', async () => {
    const monitor = new FakeMonitor();
    const answer = monitor.kernel.answers.subscribe!;
    monitor.kernel.answers.subscribe = request => {
      const replying = { ...request, reply: (c: never) => setTimeout(() => request.reply(c), 50) };
      answer(replying);
      monitor.frame();
      monitor.frame();
    };
    const { source, seqs } = await open(monitor);
    await after(60);
    expect(source.stats).toMatchObject({ expected: 2, received: 2, missed: 0, outstanding: 0 });
    expect(new Set(seqs)).toEqual(new Set(Array.from({ length: 22 }, (_, i) => i + 1)));
  });

  it('is left when nobody looks, and caught up with afterwards', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs, opened } = await open(monitor);
    source.setVisible(false);
    await soon();
    expect(monitor.kernel.commands().at(-1)).toBe('unsubscribe');
    for (let i = 0; i < 10; i += 1) {
      monitor.frame();
    }
    expect(source.stats).toMatchObject({ received: 0, expected: 0 });
    await after(60_000);
    expect(monitor.kernel.commands()).toHaveLength(5);
    source.setVisible(true);
    await soon();
    expect(seqs.slice(20)).toEqual([21, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
    expect(source.stats).toMatchObject({ missed: 0, hidden: 30, backfilled: 30, outstanding: 0 });
    expect(opened).toHaveLength(1);
  });

  it('takes several rows of a frame, those that it has not got, and keeps loaders that are not in it', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs } = await open(monitor);
    const { loaders } = source;
    monitor.frame({ loaders: undefined, rows: 4 });
    expect(seqs.slice(-4)).toEqual([21, 22, 23, 24]);
    monitor.seq -= 2;
    monitor.frame({ loaders: undefined, rows: 4 });
    expect(seqs.slice(-6)).toEqual([21, 22, 23, 24, 25, 26]);
    expect(source.stats).toMatchObject({ received: 6, missed: 0, outstanding: 0 });
    expect(source.loaders).toBe(loaders);
    monitor.frame({ rows: 2 });
    expect(source.loaders).toEqual([]);
    const asked = monitor.kernel.requests.filter(({ command }) => command === 'subscribe');
    expect(asked.map(({ args }) => args.bundled)).toContain(true);
  });

  it('renews its lease at half-life', async () => {
    const monitor = new FakeMonitor();
    await open(monitor);
    await after(35_000);
    const subscribed = monitor.kernel.requests.filter(request => request.command === 'subscribe');
    expect(subscribed).toHaveLength(4);
    expect(new Set(subscribed.map(request => request.args.client)).size).toBe(1);
  });

  it('opens again for another schema and for another session', async () => {
    const monitor = new FakeMonitor();
    const { source, opened } = await open(monitor);
    monitor.version = 4;
    monitor.frame();
    await soon();
    expect(opened.map(schema => schema.version)).toEqual([3, 4]);
    monitor.session = 's2';
    monitor.seq = 0;
    monitor.frame();
    await soon();
    expect(opened).toHaveLength(3);
    expect(source.session).toBe('s2');
    expect(source.stats).toMatchObject({ expected: 0, missed: 0, outstanding: 0 });
  });

  it('asks again for charts that may be of the schema before', async () => {
    const monitor = new FakeMonitor();
    const { answers } = monitor.kernel;
    const asked: number[] = [];
    answers.document = request => {
      asked.push(monitor.version);
      const content = { ...golden('reply-document').content, schema: monitor.version };
      request.reply(content, [new TextEncoder().encode('{}')]);
    };
    const history = answers.history!;
    answers.history = request => {
      monitor.version = 4; // A loop's first phase is measured between the replies.
      history(request);
    };
    const { source, opened } = await open(monitor);
    expect(opened.map(schema => schema.version)).toEqual([4]);
    const charts = source.document();
    await soon();
    expect((await charts).schema).toBe(4);
    expect(asked).toEqual([3, 4]);
  });

  it('refuses a frame that does not fit its schema, in words', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.kernel.publish('kernel_monitor_frame', { ...golden('frame').content, session: 's1' }, [
      new Float32Array(2)
    ]);
    expect(source.connection.state).toBe('incompatible');
    expect(source.connection.text).toContain('Frame: 8 bytes where 12 are due.');
  });
});

describe('commands', () => {
  it('reject with the kernel’s error and its words', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.kernel.answers.switch = request => request.reply(golden('reply-error').content);
    const error = await source.switchTo('l', 'dali-gpu').catch((e: unknown) => e as Error);
    expect(error).toMatchObject({
      name: 'BackendUnavailable',
      message: 'dali-gpu is not available: NVML Shared Library Not Found'
    });
  });

  it('have the header that a kernel expects', async () => {
    const monitor = new FakeMonitor();
    await open(monitor);
    const ids = monitor.kernel.requests.map(({ message }) => message.header!.msg_id);
    expect(new Set(ids).size).toBe(ids.length);
    expect(monitor.kernel.requests[0]!.message).toMatchObject({
      header: {
        session: 'page-1',
        username: 'u',
        version: '5.3',
        msg_type: 'kernel_monitor_request'
      },
      parent_header: {},
      metadata: {},
      channel: 'control',
      buffers: []
    });
  });

  it('a disposed source lets go of the kernel', async () => {
    const monitor = new FakeMonitor();
    const { source, seqs } = await open(monitor);
    source.dispose();
    await soon();
    expect(monitor.kernel.commands().at(-1)).toBe('unsubscribe');
    const { iopubMessage, statusChanged, connectionStatusChanged } = monitor.kernel;
    for (const signal of [iopubMessage, statusChanged, connectionStatusChanged]) {
      expect(signal.slots.size).toBe(0);
    }
    monitor.frame();
    expect(seqs).toHaveLength(20);
    const before = monitor.kernel.requests.length;
    await after(60_000);
    expect(monitor.kernel.requests).toHaveLength(before);
  });
});
