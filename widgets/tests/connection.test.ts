import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { KernelSource } from '../src/stream/kernel_source.js';
import { FakeKernel, FakeMonitor, golden } from './fakes.js';
import { after, open, soon } from './seen.js';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

describe('the states of a connection', () => {
  it('not loaded: a kernel that does not list us is sent nothing of ours', async () => {
    const kernel = new FakeKernel();
    kernel.loaded = false;
    const source = new KernelSource(kernel);
    source.setVisible(true);
    await soon();
    expect(source.connection).toMatchObject({
      state: 'not-loaded',
      remedy: '%load_ext kernel_monitor'
    });
    source.setVisible(false);
    await after(60_000);
    expect(kernel.commands()).toEqual([]);
  });

  it('unloaded: it is asked again whether it has us before it is sent anything', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.notice('unloaded');
    monitor.kernel.loaded = false;
    const before = monitor.kernel.commands().length;
    source.refresh();
    await after(1000);
    expect(source.connection.state).toBe('not-loaded');
    expect(monitor.kernel.commands().length).toBe(before);
  });

  it('not loaded: the kernel is idle again and nobody answered', async () => {
    const kernel = new FakeKernel();
    kernel.answers.hello = request => request.idle();
    const source = new KernelSource(kernel);
    source.setVisible(true);
    await after(290);
    expect(source.connection.state).toBe('connecting');
    await after(20);
    expect(source.connection).toMatchObject({
      state: 'not-loaded',
      remedy: '%load_ext kernel_monitor'
    });
    expect(source.canStart).toBe(false);
    await expect(source.start()).rejects.toThrow('%load_ext kernel_monitor');
  });

  it('an answer after the idle still counts', async () => {
    const monitor = new FakeMonitor();
    const answer = monitor.kernel.answers.hello!;
    monitor.kernel.answers.hello = request => {
      request.idle();
      setTimeout(() => answer(request), 200);
    };
    const { source } = await open(monitor);
    await after(400);
    expect(source.connection.state).toBe('running');
  });

  it('a late command is not taken for a missing one', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.kernel.answers.export = request => {
      request.idle();
      const { content, buffers } = golden('reply-export');
      setTimeout(() => request.reply(content, buffers), 5000);
    };
    const page = source.exportPage();
    await after(5100);
    expect((await page).filename).toBe('kernel-monitor-2026-11-20-190000.html');
  });

  it('loads where the host can, saying what it does', async () => {
    const monitor = new FakeMonitor();
    const { start } = monitor.kernel.answers;
    monitor.kernel.loaded = false;
    let texts: string[] = [];
    const source = new KernelSource(monitor.kernel, {
      load: say => {
        say('waiting for the running cell');
        texts = [source.connection.text];
        monitor.kernel.loaded = true;
        return Promise.resolve();
      }
    });
    monitor.kernel.answers.start = start ?? (request => request.reply(monitor.hello()));
    source.setVisible(true);
    await after(400);
    expect(source.canStart).toBe(true);
    await source.start();
    await soon();
    expect(texts).toEqual(['waiting for the running cell']);
    expect(source.connection.state).toBe('running');
  });

  it('loaded and unloaded by a cell', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.notice('unloaded');
    expect(source.connection.state).toBe('not-loaded');
    monitor.frame();
    expect(source.stats.received).toBe(0);
    monitor.notice('loaded');
    await soon();
    expect(source.connection.state).toBe('running');
  });

  it('stopped: no lease is kept', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.running = false;
    monitor.notice('stopped');
    await soon();
    expect(source.connection.state).toBe('stopped');
    expect(source.canStart).toBe(true);
    expect(monitor.kernel.commands().at(-1)).toBe('unsubscribe');
    const before = monitor.kernel.requests.length;
    await after(60_000);
    expect(monitor.kernel.requests).toHaveLength(before);
  });

  it('paused: no lease is kept, and the next cell goes on', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.paused = true;
    monitor.notice('paused');
    expect(source.connection.state).toBe('paused');
    const before = monitor.kernel.requests.length;
    await after(60_000);
    expect(monitor.kernel.requests).toHaveLength(before);
    monitor.paused = false;
    monitor.kernel.publish('execute_input', {});
    await soon();
    expect(source.connection.state).toBe('running');
  });

  it('paused: a person ends it', async () => {
    const monitor = new FakeMonitor();
    monitor.paused = true;
    const { source } = await open(monitor);
    expect(source.connection.state).toBe('paused');
    monitor.paused = false;
    await source.resume();
    expect(monitor.kernel.requests.find(request => request.args.touch)).toBeDefined();
    expect(source.connection.state).toBe('running');
  });

  it('another protocol: which side is older, and the environment', async () => {
    const monitor = new FakeMonitor();
    const { content } = golden('reply-hello');
    monitor.kernel.answers.hello = request =>
      request.reply({ ...content, protocol: 0, version: '0.0.9', environment: 'old-env' });
    const { source } = await open(monitor);
    expect(source.connection.state).toBe('incompatible');
    expect(source.connection.text).toContain('old-env');
    expect(source.connection.remedy).toBe('pip install --upgrade kernel-monitor');
  });

  it('a kernel that refuses our protocol is quoted', async () => {
    const monitor = new FakeMonitor();
    monitor.kernel.answers.hello = request =>
      request.reply({ status: 'error', error: 'BadRequest', message: 'speaks protocol 2' });
    const { source } = await open(monitor);
    expect(source.connection).toMatchObject({ state: 'incompatible' });
    expect(source.connection.text).toContain('speaks protocol 2');
  });

  it('restart: what waits fails at once, and it re-attaches', async () => {
    const monitor = new FakeMonitor();
    const { source, states, opened } = await open(monitor);
    const waiting = source.exportPage();
    const failed = expect(waiting).rejects.toThrow('The kernel restarts.');
    monitor.kernel.setStatus('restarting');
    await failed;
    expect(source.connection.text).toBe('The kernel restarts…');
    monitor.session = 's2';
    monitor.kernel.setStatus('idle');
    await soon();
    expect(states).toEqual(['running', 'connecting', 'connecting', 'running']);
    expect(opened).toHaveLength(2);
  });

  it('a lost connection to a busy kernel: found again by the connection alone', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.kernel.connectionStatusChanged.emit('connecting');
    expect(source.connection.state).toBe('connecting');
    monitor.kernel.connectionStatusChanged.emit('connected');
    await soon();
    expect(source.connection.state).toBe('running');
  });

  it('dead', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.kernel.setStatus('dead');
    expect(source.connection.state).toBe('dead');
    source.setVisible(false);
    source.setVisible(true);
    await soon();
    expect(source.connection.state).toBe('dead');
  });

  it('no answer at all: says so and tries again', async () => {
    const monitor = new FakeMonitor();
    const { hello } = monitor.kernel.answers;
    delete monitor.kernel.answers.hello;
    const { source } = await open(monitor);
    await after(15_100);
    expect(source.connection).toMatchObject({ state: 'connecting' });
    expect(source.connection.text).toContain('did not answer');
    monitor.kernel.answers.hello = hello!;
    await after(5100);
    expect(source.connection.state).toBe('running');
  });
});
