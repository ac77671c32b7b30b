import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Controls } from '../src/page/controls.js';
import { RecordedSource } from '../src/stream/recorded_source.js';
import { duration, entryText, moment, recordedText } from '../src/stream/sessions.js';
import { decode } from '../src/stream/message_check.js';
import type { Rows, Schema } from '../src/stream/page_messages.js';
import { FakeMonitor, golden } from './fakes.js';
import { FakeSource } from './fakesource.js';
import { soon } from './seen.js';

const STARTED = new Date(2026, 10, 20, 14, 3).getTime() / 1000;
const ENTRY = { started: STARTED, seconds: 1872, live: false, goodbye: false };
const LABEL = {
  ...ENTRY,
  path: '/s/one.kmsession',
  bin_s: 0.5,
  ended: STARTED + 1872,
  reason: null
};
const { loaders, strip } = decode('SubscribeReply', golden('reply-subscribe').content);

describe('the words', () => {
  it('say when, how long, and how it ended', () => {
    expect([12, 72, 1872, 7500].map(duration)).toEqual([
      '12 s',
      '1 min 12 s',
      '31 min 12 s',
      '2 h 5 min'
    ]);
    expect(moment(STARTED)).toBe('2026-11-20 14:03');
    expect(entryText(ENTRY)).toBe('2026-11-20 14:03 · 31 min 12 s · ended without goodbye');
    expect(entryText({ ...ENTRY, goodbye: true })).toBe('2026-11-20 14:03 · 31 min 12 s');
    expect(entryText({ ...ENTRY, live: true })).toContain('still being recorded');
    expect(recordedText(ENTRY)).toBe(
      'Recorded 2026-11-20 14:03, 31 min 12 s, ended without goodbye — not live.'
    );
    expect(recordedText({ ...ENTRY, live: true })).toBe(
      'Recorded 2026-11-20 14:03, 31 min 12 s, still being recorded — a still picture, not live.'
    );
  });
});

describe('a recorded source', () => {
  let monitor: FakeMonitor;
  let opened: Schema[];
  let rows: Rows[];

  function listen(source: RecordedSource): RecordedSource {
    source.opened.on(schema => opened.push(schema));
    source.arrived.on(some => rows.push(some));
    return source;
  }

  beforeEach(() => {
    vi.useFakeTimers();
    opened = [];
    rows = [];
    monitor = new FakeMonitor();
    const { answers } = monitor.kernel;
    const subscribe = answers.subscribe!;
    answers.subscribe = request => {
      const reply = request.reply.bind(request);
      request.reply = content => reply({ ...content, running: false, recorded: LABEL, loaders });
      subscribe(request);
    };
    answers.open = request => request.reply({ recorded: 'r1', ...LABEL, facts: {} });
  });
  afterEach(() => vi.useRealTimers());

  it('reads the session once, when it is seen, and nothing flows', async () => {
    const source = listen(new RecordedSource(monitor.kernel, { id: 'r1' }));
    await soon();
    expect(monitor.kernel.commands()).toEqual([]);
    source.setVisible(true);
    await soon();
    expect(monitor.kernel.requests.map(({ command, args }) => [command, args.recorded])).toEqual([
      ['subscribe', 'r1'],
      ['history', 'r1']
    ]);
    expect(source.connection).toMatchObject({ state: 'recorded', text: recordedText(ENTRY) });
    expect(opened).toHaveLength(1);
    expect(rows[0]!.seq).toHaveLength(20);
    expect(source.loaders.every(loader => loader.ended)).toBe(true);
    expect(source.settings).toBeNull();
    monitor.frame();
    source.setVisible(false);
    source.setVisible(true);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(rows).toHaveLength(1);
    expect(monitor.kernel.commands()).toEqual(['subscribe', 'history']);
    await expect(source.stop()).rejects.toThrow('a picture');
    await expect(source.switchTo()).rejects.toThrow('a picture');
  });

  it('asks for charts and export of that session', async () => {
    const source = listen(new RecordedSource(monitor.kernel, { path: '/s/one.kmsession' }));
    monitor.kernel.answers.document = request => {
      const { content, buffers } = golden('reply-document');
      request.reply(content, buffers);
    };
    source.setVisible(true);
    await soon();
    const document = source.document();
    await soon();
    await document;
    expect(monitor.kernel.commands()).toEqual(['open', 'subscribe', 'history', 'document']);
    expect(monitor.kernel.requests.at(-1)!.args).toEqual({ recorded: 'r1' });
    expect(monitor.kernel.requests[0]!.args).toEqual({ path: '/s/one.kmsession' });
  });

  it('reads a session that has grown again', async () => {
    const source = listen(new RecordedSource(monitor.kernel, { id: 'r1' }));
    source.setVisible(true);
    await soon();
    monitor.seq = 40;
    const reloaded = source.reload();
    await soon();
    await reloaded;
    expect(opened).toHaveLength(2);
    expect(rows[1]!.seq).toHaveLength(40);
  });

  it('opens the file again where the kernel has forgotten it', async () => {
    const source = listen(new RecordedSource(monitor.kernel, { id: 'r1' }));
    source.setVisible(true);
    await soon();
    let calls = 0;
    monitor.kernel.answers.export = request => {
      calls += 1;
      const { content, buffers } = golden('reply-export');
      request.reply(
        calls === 1 ? { status: 'error', error: 'SessionError', message: 'no such' } : content,
        buffers
      );
    };
    const page = source.exportPage();
    await soon();
    expect((await page).filename).toContain('.html');
    expect(monitor.kernel.commands().slice(2)).toEqual(['export', 'open', 'export']);
  });

  it('says why it cannot be shown, and tries again when it is looked at again', async () => {
    monitor.kernel.answers.open = request =>
      request.reply({ status: 'error', error: 'SessionError', message: 'The file is damaged.' });
    const source = listen(new RecordedSource(monitor.kernel, { path: '/s/one.kmsession' }));
    source.setVisible(true);
    await soon();
    expect(source.connection.text).toContain('The file is damaged.');
    monitor.kernel.answers.open = request => request.reply({ recorded: 'r1', ...LABEL, facts: {} });
    source.setVisible(false);
    source.setVisible(true);
    await soon();
    expect(source.connection.state).toBe('recorded');
  });
});

describe('the controls of a recording', () => {
  const press = (name: string): HTMLButtonElement =>
    [...document.querySelectorAll('button')].find(el => el.textContent === name)!;

  it('offer what a picture has, and no more', () => {
    const source = new FakeSource();
    const windows: number[] = [];
    source.connection = { state: 'recorded', text: 'Recorded…', remedy: null, recorded: null };
    source.recorded = LABEL;
    source.strip = strip;
    source.loaders = loaders.map(loader => ({ ...loader, ended: true }));
    const controls = new Controls(source, {
      onWindow: seconds => windows.push(seconds),
      onRequest: () => undefined
    });
    document.body.replaceChildren(controls.el);
    for (const name of ['Start', 'Stop', 'Reload', 'Charts', 'Restart kernel']) {
      expect(press(name).hidden, name).toBe(true);
    }
    expect(press('Export').disabled).toBe(false);
    expect(document.querySelector<HTMLElement>('[role=radiogroup]')!.hidden).toBe(true);
    expect(document.querySelector<HTMLElement>('.km-invitation')!.hidden).toBe(true);
    expect(document.querySelector('.km-label')!.textContent).toBe('Loader');
    expect(document.querySelector('.km-counter')!.textContent).not.toBe('');
    expect(windows).toEqual([1872.5]);
    source.recorded = { ...LABEL, live: true };
    controls.update();
    expect(press('Reload').hidden).toBe(false);
    press('Reload').click();
    expect(source.reload).toHaveBeenCalled();
  });
});
