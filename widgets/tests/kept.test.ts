/** What a source keeps besides the stream: settings, the recording's state, and how the process before ended. */

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { KernelSource } from '../src/stream/kernel_source.js';
import { Controls } from '../src/page/controls.js';
import * as words from '../src/stream/connection.js';
import { FakeMonitor } from './fakes.js';
import { FakeSource } from './fakesource.js';
import { after, open, soon } from './seen.js';

const SETTINGS = {
  ...{ interval: 0.1, history: 600, charts: ['cpu'], record: true, record_to: null },
  ...{ price: null, currency: '' }
};
const RECORDING = { state: 'recording', path: '/s/one.kmsession', message: '' };
const OFF = { state: 'off', path: null, message: '' };
const CHARTS = [{ id: 'cpu', title: 'CPU', available: true, default: true, reason: null }];

function setUp(monitor: FakeMonitor): void {
  const hello = monitor.hello.bind(monitor);
  monitor.hello = () => ({
    ...hello(),
    settings: SETTINGS,
    charts: CHARTS,
    recording: monitor.session === null ? OFF : RECORDING
  });
}

describe('settings and recording', () => {
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => vi.useRealTimers());

  it('come with the subscription', async () => {
    const monitor = new FakeMonitor();
    setUp(monitor);
    const { source } = await open(monitor);
    expect(source.settings).toEqual(SETTINGS);
    expect(source.charts).toEqual(CHARTS);
    expect(source.recording).toEqual(RECORDING);
  });

  it('change by a request, whose answer may come after the kernel’s idle', async () => {
    const monitor = new FakeMonitor();
    setUp(monitor);
    const { source } = await open(monitor);
    monitor.kernel.answers.configure = request => {
      request.idle();
      setTimeout(() => request.reply({ settings: { ...SETTINGS, interval: 1 } }), 2000);
    };
    const changed = vi.fn();
    source.changed.on(changed);
    const answered = source.configure({ interval: 1 });
    await after(2100);
    await answered;
    expect(monitor.kernel.requests.at(-1)!.args).toEqual({ interval: 1 });
    expect(source.settings?.interval).toBe(1);
    expect(changed).toHaveBeenCalled();
  });

  it('the recording’s state comes with the frame after it changed', async () => {
    const monitor = new FakeMonitor();
    setUp(monitor);
    const { source } = await open(monitor);
    const stopped = { state: 'stopped', path: null, message: 'The disk is full.' };
    monitor.frame({ recording: stopped });
    expect(source.recording).toEqual(stopped);
    monitor.frame();
    expect(source.recording).toEqual(stopped);
  });
});

describe('a kernel that died', () => {
  beforeEach(() => vi.useFakeTimers());
  afterEach(() => vi.useRealTimers());

  it('left a recording, which is offered until something is measured again', async () => {
    const monitor = new FakeMonitor();
    setUp(monitor);
    const { source } = await open(monitor);
    monitor.kernel.loaded = false;
    monitor.kernel.setStatus('autorestarting');
    expect(source.connection.text).toBe('The kernel died and is started again…');
    monitor.kernel.setStatus('idle');
    await after(400);
    expect(source.connection).toMatchObject({
      state: 'not-loaded',
      recorded: '/s/one.kmsession',
      text: 'The kernel died and was started again. kernel_monitor is not loaded in this kernel.'
    });
    monitor.kernel.loaded = true;
    [monitor.session, monitor.running] = [null, false];
    monitor.notice('loaded');
    await soon();
    expect(source.connection).toMatchObject({ state: 'stopped', recorded: '/s/one.kmsession' });
    [monitor.session, monitor.running] = ['s2', true];
    monitor.notice('started');
    await soon();
    expect(source.connection).toMatchObject({ state: 'running', recorded: null });
  });

  it('is dead where nobody starts it again; a restart that was asked for is no death', async () => {
    const monitor = new FakeMonitor();
    setUp(monitor);
    const { source } = await open(monitor);
    monitor.kernel.setStatus('dead');
    expect(source.connection).toMatchObject({ state: 'dead', recorded: '/s/one.kmsession' });

    const other = new FakeMonitor();
    setUp(other);
    const second = (await open(other)).source;
    other.kernel.loaded = false;
    other.kernel.setStatus('restarting');
    other.kernel.setStatus('idle');
    await after(400);
    expect(second.connection).toMatchObject({
      text: 'kernel_monitor is not loaded in this kernel.',
      recorded: '/s/one.kmsession'
    });
  });

  it('a source that nobody saw finds out whether it must load', async () => {
    const monitor = new FakeMonitor();
    monitor.kernel.answers.start = request => request.reply(monitor.hello());
    const load = vi.fn(() => {
      monitor.kernel.loaded = true;
      return Promise.resolve();
    });
    const hidden = new KernelSource(monitor.kernel, { load });
    const started = hidden.start();
    await soon();
    await started;
    expect(load).not.toHaveBeenCalled();
    monitor.kernel.loaded = false;
    monitor.notice('unloaded');
    const again = hidden.start();
    await after(400);
    await again;
    expect(load).toHaveBeenCalledOnce();
    expect(monitor.kernel.commands()).toEqual(['hello', 'start', 'start']);
  });
});

describe('what the page offers for it', () => {
  const press = (name: string): HTMLButtonElement =>
    [...document.querySelectorAll('button')].find(el => el.textContent === name)!;
  const fate = { died: true, recorded: '/s/one.kmsession' };

  function mount(hooks: Partial<ConstructorParameters<typeof Controls>[1]>): FakeSource {
    const source = new FakeSource();
    source.connection = words.afterProcessEnd(fate, words.dead());
    const controls = new Controls(source, {
      onWindow: () => undefined,
      onRequest: () => undefined,
      ...hooks
    });
    document.body.replaceChildren(controls.el);
    return source;
  }

  it('a restart and the recording, where the host can', async () => {
    const restart = vi.fn(() => Promise.resolve());
    const openRecorded = vi.fn(() => Promise.reject(new Error('The file is damaged.')));
    mount({ restart, openRecorded });
    press('Restart kernel').click();
    expect(restart).toHaveBeenCalledOnce();
    press('Open it').click();
    expect(openRecorded).toHaveBeenCalledWith('/s/one.kmsession');
    await new Promise(resolve => setTimeout(resolve, 5));
    expect(document.querySelector('[role=alert]')!.textContent).toContain('The file is damaged.');
  });

  it('else the line that opens it', () => {
    mount({});
    expect(press('Restart kernel').hidden).toBe(true);
    expect(document.querySelector('.km-left')!.textContent).toContain(
      '%monitor open /s/one.kmsession'
    );
  });

  it('nothing where nothing was recorded', () => {
    const source = mount({});
    source.connection = words.dead();
    const controls = new Controls(source, {
      onWindow: () => undefined,
      onRequest: () => undefined
    });
    expect(controls.el.querySelector<HTMLElement>('.km-left')!.hidden).toBe(true);
  });
});
