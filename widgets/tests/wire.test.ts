import { describe, expect, it } from 'vitest';

import { Channel } from '../src/stream/channel.js';
import { Commands } from '../src/stream/commands.js';
import { decode } from '../src/stream/message_check.js';
import * as protocol from '../src/stream/protocol.js';
import * as wire from '../src/stream/page_messages.js';
import { FakeKernel, golden } from './fakes.js';

const { schema, session: SESSION } = decode('SubscribeReply', golden('reply-subscribe').content);

describe('golden messages', () => {
  it('have the names of this half', () => {
    expect(golden('request-hello').msg_type).toBe(protocol.REQUEST);
    expect(golden('reply-hello').msg_type).toBe(protocol.REPLY);
    expect(golden('frame').msg_type).toBe(protocol.FRAME);
    expect(golden('notice').msg_type).toBe(protocol.NOTICE);
    expect(golden('request-hello').content.protocol).toBe(protocol.PROTOCOL);
  });

  it('decode: hello', () => {
    const hello = wire.decodeHello(golden('reply-hello').content);
    const { PROTOCOL, VERSION } = protocol;
    expect(hello).toMatchObject({ protocol: PROTOCOL, version: VERSION, environment: 'train' });
  });

  it('decode: subscription', () => {
    const subscription = decode('SubscribeReply', golden('reply-subscribe').content);
    expect(subscription).toMatchObject({ lease: 20, seq: 17, paused: false, running: true });
    expect(subscription.schema.series[3]).toEqual({ name: 'gpu/0/utilisation', unit: '%' });
    expect(subscription.loaders[0]?.name).toBe('train <b>');
    expect(subscription.strip?.rows[0]).toMatchObject({ label: 'CPU p95', before: 100, after: 61 });
    expect(subscription.events.map(event => event.kind)).toEqual(['switch-asked', 'switch']);
  });

  it('decode: switch', () => {
    const state = decode('LoaderReply', golden('reply-switch').content).loader;
    expect(state).toMatchObject({ backend: 'torchvision', wanted: 'dali-cpu', planned: 2048 });
  });

  it('decode: set', () => {
    const state = decode('LoaderReply', golden('reply-set').content).loader;
    expect(state).toMatchObject({ knobs: { workers: 4, prefetch: 3, threads: 2 }, skipped: 1 });
    expect(state.skips).toEqual([
      { index: 612, path: 'train/n01/<i>cat</i>.jpg', reason: 'cannot identify image file' }
    ]);
    expect(state.backends.map(({ confirm }) => confirm !== null)).toEqual([
      false,
      false,
      false,
      true,
      true
    ]);
  });

  it('decode: frame, NaN where nothing was measured', () => {
    const frame = wire.frameOf(golden('frame'), SESSION, schema)!;
    expect([...frame.values]).toEqual([50, 99.5, 8606711808, 31, 0, 12.25, 80.5]);
    expect(frame).toMatchObject({ seq: 17, time: 1.7, schema: 3 });
  });

  it('decode: history', () => {
    const { content, buffers } = golden('reply-history');
    const { rows, events } = wire.decodeHistory(content, buffers);
    expect([...rows.seq]).toEqual([15, 16, 17]);
    expect([...rows.time]).toEqual([1.5, 1.6, 1.7]);
    expect([...rows.values.slice(0, 5)]).toEqual([12.5, 100, 8589934592, NaN, 320]);
    expect(rows.values).toHaveLength(3 * rows.schema.series.length);
    expect(events).toHaveLength(2);
  });

  it('are what the commands send', async () => {
    const client = '7c9e6679-7425-40de-944b-e07fc1f90ae7';
    const kernel = new FakeKernel();
    const commands = new Commands(new Channel(kernel), client);
    for (const name of ['hello', 'subscribe', 'history', 'switch', 'set', 'document', 'bokehjs']) {
      const { content, buffers } = golden(`reply-${name}`);
      kernel.answers[name] = request => request.reply(content, buffers);
    }
    kernel.answers.start = kernel.answers.stop = kernel.answers.hello!;
    kernel.answers.export = request =>
      request.reply(golden('reply-export').content, golden('reply-export').buffers);
    await commands.hello();
    await commands.start();
    await commands.stop();
    await commands.subscribe();
    await commands.subscribe(true);
    await commands.switchTo('loader-1', 'dali-cpu');
    await commands.switchTo('loader-1', 'synthetic', true);
    await commands.set('loader-1', { workers: 4, prefetch: 3, threads: 2 });
    await commands.history(14);
    const document = await commands.document();
    const bokeh = await commands.bokehjs();
    const page = await commands.exportPage();
    commands.unsubscribe();
    commands.answerSidebar('2f1d6a0c-7a55-4c0e-9a51-3f0f0b6f1c11');
    const sent = kernel.requests.map(request => request.message.content);
    const names =
      'hello start stop subscribe subscribe-touch switch switch-confirmed set history document bokehjs export';
    expect(sent).toEqual(
      [...names.split(' '), 'unsubscribe', 'sidebar'].map(name => golden(`request-${name}`).content)
    );
    expect(document).toMatchObject({ schema: 3, bokeh: '3.9.2', item: { root_id: 'p1' } });
    expect(JSON.stringify(document.item)).toContain('Wärme');
    expect(bokeh).toEqual({ version: '3.9.2', text: "this.Bokeh = {version: '3.9.2'};" });
    expect(page.html).toContain('Bericht · ü');
  });
});

describe('settings, recordings and glances', () => {
  const client = '7c9e6679-7425-40de-944b-e07fc1f90ae7';

  it('are what the commands send', async () => {
    const kernel = new FakeKernel();
    const commands = new Commands(new Channel(kernel), client);
    const names = ['configure', 'sessions', 'open', 'glance', 'history', 'document', 'export'];
    for (const name of names) {
      const { content, buffers } = golden(`reply-${name}`);
      kernel.answers[name] = request => request.reply(content, buffers);
    }
    kernel.answers.subscribe = request => request.reply(golden('reply-subscribe-recorded').content);
    const settings = await commands.configure({
      interval: 0.2,
      history: 300,
      charts: ['cpu', 'memory'],
      record: false,
      price: '2.50 €'
    });
    const sessions = await commands.sessions();
    const { path } = sessions[0]!;
    commands.recorded = await commands.open(path);
    const subscription = await commands.subscribe();
    await commands.history(0);
    await commands.document();
    await commands.exportPage();
    const glance = await commands.glance();
    const sent = kernel.requests.map(request => request.message.content);
    const recorded = 'subscribe history document export'.split(' ').map(name => `${name}-recorded`);
    expect(sent).toEqual(
      ['configure', 'sessions', 'open', ...recorded, 'glance'].map(
        name => golden(`request-${name}`).content
      )
    );
    expect(settings).toMatchObject({ interval: 0.2, record: false });
    expect(sessions[0]).toMatchObject({ seconds: 1872.4, goodbye: false, problem: null });
    expect(subscription.recorded).toMatchObject({ path, seconds: 1872.4, live: false });
    expect(glance).toMatchObject({ lease: 20, running: true, paused: false, sidebar: null });
    expect(glance.glance).toMatchObject({ cpu: 45.25, images: 1204.5, kind: 'input-bound' });
  });

  it('come with hello, subscription and frame', () => {
    const setup = decode('HelloReply', golden('reply-hello').content);
    expect(setup.settings.charts).toEqual(['cpu', 'gpu', 'images', 'wait']);
    expect(setup.charts.map(({ id, available }) => [id, available])).toEqual([
      ['cpu', true],
      ['pressure', false]
    ]);
    expect(setup.recording).toMatchObject({ state: 'recording', message: '' });
    expect(decode('Frame', golden('frame').content).recording?.state).toBe('stopped');
    expect(decode('Glance', golden('glance').content)).toMatchObject({ gpu: 87, cpu: 45.25 });
  });
});

describe('what does not have the form is refused by name', () => {
  const frame = golden('frame');
  const loader = golden('reply-switch').content.loader as object;
  const change = (changes: object): unknown =>
    decode('LoaderReply', { status: 'ok', loader: { ...loader, ...changes } });
  it.each([
    ['Frame: seq is not a number.', () => decode('Frame', { ...frame.content, seq: undefined })],
    [
      'Frame: a buffer is missing.',
      () => wire.frameOf({ content: frame.content }, SESSION, schema)
    ],
    [
      'Frame: 7 bytes where 28 are due.',
      () => wire.frameOf({ ...frame, buffers: [new ArrayBuffer(7)] }, SESSION, schema)
    ],
    [
      'HistoryReply: seq: 8 bytes where 24 are due.',
      () => wire.decodeHistory(golden('reply-history').content, [new ArrayBuffer(8)])
    ],
    ['LoaderState: skips is not a list.', () => change({ skips: 4 })],
    ['Skip: reason is not a string.', () => change({ skips: [{ index: 1, path: 'x' }] })],
    ['LoaderState: knobs is not an object.', () => change({ knobs: 4 })],
    ['LoaderState: decoded is not a number.', () => change({ decoded: { 'dali-cpu': '4' } })],
    ['LoaderState: wanted is not a string.', () => change({ wanted: undefined })],
    ['LoaderState: ended is not a boolean.', () => change({ ended: null })],
    ['HelloReply is not an object.', () => wire.decodeHello(null)]
  ])('%s', (message, read) => {
    expect(read).toThrow(new wire.WireError(message));
  });
});
