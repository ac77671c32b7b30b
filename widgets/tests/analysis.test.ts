import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { Verdict } from '../src/analysis/analysis.js';
import { Channel } from '../src/stream/channel.js';
import { decode, WireError } from '../src/stream/message_check.js';
import { Commands } from '../src/stream/commands.js';
import { Mirror } from '../src/stream/mirror.js';
import { Results } from '../src/analysis/results.js';
import type { MonitorEvent } from '../src/stream/page_messages.js';
import { FakeKernel, FakeMonitor, golden } from './fakes.js';
import { open, soon } from './seen.js';

const { content } = golden('analysis');
const news = decode('Frame', { ...golden('frame').content, ...content });
const events = content.events as MonitorEvent[];
const asks = content.asks as Record<string, unknown>;

describe('the golden analysis', () => {
  it('decodes: verdict with gains, where nothing was measured null', () => {
    expect(news.verdict).toMatchObject({ kind: 'input-bound', loader: 'loader-1', steps: 1204 });
    expect(news.verdict!.shares).toEqual({ wait: 0.62, copy: 0.03, compute: 0.3, other: 0.05 });
    expect(news.verdict!.gains.map(({ action, measured }) => [action, measured])).toEqual([
      ['dali-cpu', null],
      ['loader', 0.61]
    ]);
  });

  it('decodes: how far Diagnose and Profile are', () => {
    expect(news.diagnosing).toMatchObject({ state: 'running', backend: 'dali-cpu', done: 1 });
    expect(news.diagnosing!.result).toBeNull();
    expect(news.profiling).toMatchObject({ state: 'done', done: 10, total: 10 });
    expect(news.profiling!.result!.gpu[0]!.launches).toBe(40);
  });

  it('decodes: what was found, from the events', () => {
    const results = new Results();
    results.update(events);
    const { diagnoses, profiles } = results.of('loader-1', null);
    expect(diagnoses[0]!.runs.map(({ backend, rate }) => [backend, rate])).toEqual([
      ['torchvision', 412.5],
      ['dali-cpu', 800],
      ['dali-gpu', null]
    ]);
    expect(profiles.map(({ backend }) => backend)).toEqual(['torchvision', 'dali-cpu']);
    expect(results.of('another', null).diagnoses).toEqual([]);
  });

  it('leaves out, and tells of, an event that it cannot read', () => {
    const told = vi.spyOn(console, 'warn').mockImplementation(() => undefined);
    const results = new Results();
    results.update([{ ...events[0]!, result: { runs: 4 } }, ...events.slice(1)]);
    const found = results.of('loader-1', null);
    expect([found.diagnoses.length, found.profiles.length]).toEqual([0, 2]);
    expect(told).toHaveBeenCalledTimes(1);
  });

  it('is what the commands send', async () => {
    const kernel = new FakeKernel();
    const commands = new Commands(new Channel(kernel), 'client');
    const { diagnosing, profiling } = content;
    kernel.answers = {
      diagnose: request => request.reply({ diagnosing }),
      tune: request => request.reply({ diagnosing }),
      profile: request => request.reply({ profiling }),
      mark: request => request.reply({}),
      configure: request => request.reply({ settings: golden('reply-hello').content.settings })
    };
    expect(await commands.diagnose('loader-1', false)).toMatchObject({ diagnosing });
    await commands.diagnose('loader-1', true);
    await commands.cancelDiagnosis();
    expect(await commands.tune('loader-1')).toMatchObject({ diagnosing });
    await commands.undoTune();
    expect(await commands.profile('loader-1', 10)).toMatchObject({ profiling });
    await commands.mark('augment x12');
    await commands.configure({ price: '2.50 €' });
    expect(kernel.requests.map(request => request.message.content)).toEqual(
      ['', '-confirmed', '-cancel']
        .map(name => asks[`diagnose${name}`])
        .concat(asks.tune, asks['tune-undo'], asks.profile, asks.mark, asks.configure)
    );
  });

  it.each([
    ['VerdictState: sentence is not a string.', { verdict: { ...news.verdict, sentence: 4 } }],
    [
      'VerdictState: shares is not a number.',
      { verdict: { ...news.verdict, shares: { wait: '6' } } }
    ],
    ['GainState: action is not a string.', { verdict: { ...news.verdict, gains: [{ low: 1 }] } }],
    ['DiagnosisState: state is not a string.', { diagnosing: { ...news.diagnosing, state: null } }],
    [
      'ProfileResult: cpu is not a list.',
      { profiling: { ...news.profiling, result: { ...news.profiling!.result, cpu: 1 } } }
    ]
  ])('is refused by name: %s', (message, changes) => {
    expect(() => decode('Frame', { ...news, ...changes })).toThrow(new WireError(message));
  });
});

describe('what a page knows of it', () => {
  const verdict = (loader: string, kind: Verdict['kind']): Verdict => ({
    ...news.verdict!,
    loader,
    kind
  });

  it('is the newest verdict of each loader, as long as the session lasts', () => {
    const mirror = new Mirror();
    const schema = decode('SubscribeReply', golden('reply-subscribe').content).schema;
    mirror.begin('s', schema);
    mirror.mergeAnalysis({ verdict: null, diagnosing: null, profiling: null });
    expect(mirror.analysis!.verdicts.size).toBe(0);
    mirror.mergeAnalysis({ verdict: verdict('a', 'input-bound') });
    mirror.mergeAnalysis({ verdict: verdict('b', 'compute-bound') });
    mirror.mergeAnalysis({ verdict: verdict('a', 'copy-bound') });
    mirror.mergeAnalysis({ profiling: news.profiling! });
    // The loop has ended.
    mirror.mergeAnalysis({ verdict: null });
    expect([...mirror.analysis!.verdicts.values()].map(({ kind }) => kind)).toEqual([
      'copy-bound',
      'compute-bound'
    ]);
    expect(mirror.analysis!.diagnosing).toBeNull();
    expect(mirror.analysis!.profiling).toBe(news.profiling);
    mirror.begin('another', schema);
    expect(mirror.analysis).toBeNull();
  });
});

describe('a kernel’s source', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('takes it from subscription and frames, and orders', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    expect(source.analysis!.verdicts.size).toBe(0);
    monitor.frame({ verdict: content.verdict, diagnosing: null, profiling: null });
    expect(source.analysis!.verdicts.get('loader-1')!.kind).toBe('input-bound');
    monitor.frame({ diagnosing: content.diagnosing });
    expect(source.analysis!.diagnosing!.backend).toBe('dali-cpu');
    expect(source.analysis!.verdicts.size).toBe(1);

    monitor.kernel.answers.diagnose = request =>
      request.reply({
        diagnosing: { ...(content.diagnosing as Record<string, unknown>), state: 'cancelled' }
      });
    const asked = source.cancelDiagnosis();
    await soon();
    await asked;
    expect(source.analysis!.diagnosing!.state).toBe('cancelled');
    source.dispose();
  });

  it('is told what is offered, and says no', async () => {
    const monitor = new FakeMonitor();
    const { source } = await open(monitor);
    monitor.frame({ offers: content.offers });
    expect(source.analysis!.offers).toEqual(content.offers);
    monitor.frame({ verdict: content.verdict });
    expect(source.analysis!.offers).toHaveLength(1);
    monitor.kernel.answers.decline = request => request.reply({ offers: [] });
    const asked = source.decline('loader-1');
    await soon();
    await asked;
    expect(monitor.kernel.requests.at(-1)!.args).toEqual(
      ((content.asks as Record<string, unknown>).decline as Record<string, unknown>).args
    );
    expect(source.analysis!.offers).toEqual([]);
    source.dispose();
  });

  it('reads a loader that is only watched', () => {
    const { loader } = golden('reply-switch').content;
    const watched = {
      ...(loader as Record<string, unknown>),
      backends: [],
      knobs: { workers: null, prefetch: null, threads: null }
    };
    const frame = decode('Frame', { ...golden('frame').content, loaders: [watched] });
    expect(frame.loaders![0]!.knobs.workers).toBeNull();
  });
});
