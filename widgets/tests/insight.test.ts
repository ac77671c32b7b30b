import { beforeEach, describe, expect, it } from 'vitest';

import type { AnalysisState, Diagnosing } from '../src/analysis/analysis.js';
import * as words from '../src/stream/connection.js';
import { Controls } from '../src/page/controls.js';
import { decode } from '../src/stream/message_check.js';
import type { LoaderState, MonitorEvent } from '../src/stream/page_messages.js';
import { golden } from './fakes.js';
import { FakeSource } from './fakesource.js';

const { content } = golden('analysis');
const news = decode('Frame', { ...golden('frame').content, ...content });
const events = content.events as MonitorEvent[];
const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;
const verdict = news.verdict!;
const done = { ...news.profiling!, message: 'The trace is x.json.gz.' };

let source: FakeSource;
let controls: Controls;

const known = (changes: Partial<AnalysisState> = {}): AnalysisState => ({
  verdict: null,
  verdicts: new Map([[verdict.loader, verdict]]),
  offers: [],
  diagnosing: null,
  profiling: null,
  ranks: [],
  notices: [],
  main: null,
  ...changes
});
const one = (selector: string): HTMLElement => document.querySelector<HTMLElement>(selector)!;
const details = (selector: string): HTMLDetailsElement => one(selector) as HTMLDetailsElement;
const shown = (selector: string): boolean => one(selector).closest('[hidden]') === null;
const press = (name: string, within: ParentNode = document): HTMLButtonElement =>
  [...within.querySelectorAll('button')].find(el => el.textContent === name)!;
const show = (changes: Partial<AnalysisState> = {}): void => {
  source.analysis = known(changes);
  controls.update();
};
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));
const cells = (selector: string): string[][] =>
  [...document.querySelectorAll(`${selector} tr`)].map(row =>
    [...row.children].map(cell => cell.textContent)
  );

function mount(change: (source: FakeSource) => void = () => undefined): void {
  source = new FakeSource();
  source.analysis = known();
  change(source);
  controls = new Controls(source, { onWindow: () => undefined, onRequest: () => undefined });
  document.body.replaceChildren(controls.el);
}

beforeEach(() => {
  localStorage.clear();
  mount();
});

describe('the verdict', () => {
  it('has its warnings in sight while it is folded, and says a new one once', () => {
    const [warning] = verdict.warnings;
    const lines = (): (string | null)[] =>
      [...document.querySelectorAll('.km-warnings li')].map(li => li.textContent);
    expect(details('.km-verdict').open).toBe(false);
    expect([lines(), shown('.km-warnings')]).toEqual([[`Careful: ${warning}`], true]);
    expect(document.querySelector('.km-warnings b')).toBeNull();
    const told = one('.km-insight [aria-live]');
    expect(told.textContent).toBe('');
    const warn = (warnings: string[]): void =>
      show({ verdicts: new Map([[verdict.loader, { ...verdict, warnings }]]) });
    warn([]);
    expect([lines(), shown('.km-warnings')]).toEqual([[], false]);
    warn(['The swap took 12 %.']);
    expect(told.textContent).toBe('Careful: The swap took 12 %.');
    warn(['The swap took 13 %.']);
    expect([lines(), told.textContent]).toEqual([
      ['Careful: The swap took 13 %.'],
      '' // said once; a figure that is no longer so is not to be read
    ]);
    warn(['The swap took 13 %.', 'Another.']);
    expect(told.textContent).toBe('Careful: The swap took 13 %.\nCareful: Another.');
  });

  it('is one line in words, with its parts, advice and gains folded behind it', () => {
    const el = details('.km-verdict');
    const body = one('.km-verdict-body');
    expect([el.open, shown('.km-verdict-body')]).toEqual([false, false]);
    expect(el.querySelector('summary')!.getAttribute('aria-controls')).toBe(body.id);
    expect(el.querySelector('summary')!.textContent).toBe(
      'Input-bound: 62 % of each step is waiting for data (48 of 78 ms, 1,204 steps).'
    );
    expect(el.querySelector('svg')!.getAttribute('aria-hidden')).toBe('true');
    expect([...body.querySelectorAll('.km-shares-legend li')].map(li => li.textContent)).toEqual([
      'waits for data 62 %',
      'copies to the device 3 %',
      'computes 30 %',
      'other 5 %'
    ]);
    expect(
      [...body.querySelectorAll('.km-gains li > :first-child')].map(x => x.textContent)
    ).toEqual([
      'dali-cpu: expected 1.5 to 2.2 × faster',
      'Without any wait for data: expected 2.5 to 2.6 × faster; measured 2.6 × faster'
    ]);
    expect(body.textContent).toContain('To say more: phases: monitor.watch(model, optimizer)');
  });

  it('does not say its kind twice, and shows a part that is not known', () => {
    const sentence = 'Copy-bound: half of each step copies.';
    show({
      verdicts: new Map([
        [
          'loader-1',
          { ...verdict, kind: 'copy-bound', sentence, shares: { copy: 0.5, wait: null } }
        ]
      ])
    });
    expect(one('.km-verdict summary').textContent).toBe('Copy-bound: half of each step copies.');
    expect(one('.km-shares-legend').textContent).toBe('copies to the device 50 %not known 50 %');
  });

  it('keeps its place before there is one', () => {
    show({ verdicts: new Map() });
    expect(one('.km-verdict summary').textContent).toContain('No verdict yet');
    expect(shown('.km-verdict')).toBe(true);
  });

  it('is of the loop that trains, which the loader beside it says', () => {
    show({
      verdicts: new Map([['loader-2', { ...verdict, loader: 'loader-2' }]]),
      main: 'loader-2'
    });
    expect(one('.km-verdict summary').textContent).toBe(
      'No verdict: only the loop that trains is judged here. The report judges all.'
    );
  });

  it('is announced when its kind changes, and not when its figures do', () => {
    const said = one('.km-insight > [aria-live]');
    show({ verdicts: new Map([['loader-1', { ...verdict, sentence: '63 % waits.' }]]) });
    expect(said.textContent).toBe('');
    show({
      verdicts: new Map([['loader-1', { ...verdict, kind: 'compute-bound', sentence: 'Busy.' }]])
    });
    expect(said.textContent).toBe('Compute-bound');
    expect(one('.km-verdict').closest('[aria-live]')).toBeNull();
  });

  it('stays open when a person opened it, in the next view too', async () => {
    details('.km-verdict').open = true;
    one('.km-verdict').dispatchEvent(new Event('toggle'));
    await settle();
    mount();
    expect([details('.km-verdict').open, shown('.km-verdict-body')]).toEqual([true, true]);
    expect(details('.km-result').open).toBe(false);
  });

  it('is not there before the first subscription, nor are the buttons', () => {
    source.analysis = null;
    controls.update();
    expect(shown('.km-insight')).toBe(false);
    expect(press('Mark…').hidden).toBe(true);
  });
});

describe('Diagnose', () => {
  const running = news.diagnosing!;
  const progress = (): HTMLElement => one('[role=progressbar][aria-label=Diagnose]');
  const question = (): HTMLElement => one('[role=alertdialog][aria-label="Diagnose?"]');

  it('asks first, with replayed batches as a choice that nobody made', async () => {
    press('Diagnose').click();
    expect(question().hidden).toBe(false);
    expect(question().textContent).toContain('torchvision and dali-cpu');
    expect(document.activeElement!.textContent).toBe('Cancel');
    const box = question().querySelector<HTMLInputElement>('input')!;
    expect(box.checked).toBe(false);
    const note = document.getElementById(box.getAttribute('aria-describedby')!)!;
    expect(note.textContent).toBe(state.backends.find(({ name }) => name === 'synthetic')!.confirm);
    press('Run it', question()).click();
    await settle();
    expect(source.diagnose.mock.calls).toEqual([['loader-1', false]]);
    expect(document.activeElement).toBe(press('Diagnose'));
    press('Diagnose').click();
    expect(box.checked).toBe(false);
    box.checked = true;
    press('Run it', question()).click();
    await settle();
    expect(source.diagnose.mock.calls[1]).toEqual(['loader-1', true]);
    press('Diagnose').click();
    press('Cancel', question()).click();
    expect(source.diagnose).toHaveBeenCalledTimes(2);
  });

  it('offers no replay where there is none, and is not there for what is only watched', () => {
    source.loaders = [{ ...state, backends: state.backends.slice(0, 2) }];
    controls.update();
    press('Diagnose').click();
    expect(question().querySelector('input')!.closest('[hidden]')).not.toBeNull();
    const none = { workers: null, prefetch: null, threads: null };
    source.loaders = [{ ...state, id: 'loop', name: 'my loop', backends: [], knobs: none }];
    controls.update();
    expect(press('Diagnose').hidden).toBe(true);
    expect(press('Profile 10 steps').hidden).toBe(false);
    expect(one('.km-label').textContent).toBe('Watched my loop');
    expect([one('.km-radios').hidden, one('.km-knobs').hidden]).toEqual([true, true]);
  });

  it('shows the engine, what is left, and a way out', async () => {
    show({ diagnosing: running });
    expect(progress().getAttribute('aria-valuenow')).toBe('33');
    expect(progress().getAttribute('aria-valuetext')).toBe(
      'Diagnose: measuring dali-cpu (engine 2 of 3), 21 s left'
    );
    show({ diagnosing: { ...running, seconds_left: 7 } });
    expect(progress().getAttribute('aria-valuenow')).toBe('67');
    expect(press('Diagnose').getAttribute('aria-disabled')).toBe('true');
    press('Diagnose').click();
    expect(question().hidden).toBe(true);
    const cancel = progress().closest('.km-progress')!.querySelector('button')!;
    expect(cancel.getAttribute('aria-label')).toBe('Cancel: Diagnose');
    cancel.focus();
    cancel.click();
    await settle();
    expect(source.cancelDiagnosis).toHaveBeenCalledTimes(1);
    show({ diagnosing: { ...running, state: 'cancelled', message: 'It was cancelled.' } });
    expect(progress().closest('[hidden]')).not.toBeNull();
    expect(document.activeElement).toBe(press('Diagnose'));
    expect(one('.km-outcome').textContent).toBe('Diagnose: It was cancelled.');
    expect(one('.km-insight > [aria-live]').textContent).toBe('Diagnose: It was cancelled.');
  });

  it('leaves a sentence, and a table with counts and spread behind it', () => {
    source.events = events;
    show({ diagnosing: running });
    expect(shown('.km-result')).toBe(false);
    const result = events[0]!.result as NonNullable<Diagnosing['result']>;
    show({ diagnosing: { ...running, state: 'done', result } });
    expect(one('.km-insight > [aria-live]').textContent).toBe(result.sentence);
    expect(one('.km-result summary').textContent).toBe(`Diagnose${result.sentence}`);
    const table = '[aria-label="Measured in this loop"]';
    expect(cells(table)).toEqual([
      'engine,images/s,quartiles,step,wait,of the ceiling,CPU p50,CPU p95,steps'.split(','),
      'torchvision,413,380 to 440,77.6 ms,48.1 ms,38 %,99.5 %,100 %,106'.split(','),
      'dali-cpu,800,782 to 815,40 ms,9.5 ms,74 %,62 %,88 %,205'.split(',')
    ]);
    const text = one('.km-result').textContent;
    expect(text).toContain('dali-cpu: expected 1.5 to 2.2 × faster; measured 1.94 × faster');
    expect(text).toContain('dali-gpu: NVML Shared Library Not Found.');
    expect(one(`${table} tbody th`).getAttribute('role')).toBe('rowheader');
  });

  it('is said to have failed only at its own loader', () => {
    const other: LoaderState = { ...state, id: 'v', name: 'val' };
    source.loaders = [state, other];
    show({ diagnosing: { ...running, state: 'failed', message: 'No training loop is running.' } });
    const told = [...document.querySelectorAll('.km-outcome')].map(el => el.textContent);
    expect(told).toEqual(['Diagnose: No training loop is running.', '']);
  });

  it('shows why it was not begun', async () => {
    source.diagnose.mockRejectedValue(new Error('val is being diagnosed.'));
    press('Diagnose').click();
    press('Run it', question()).click();
    await settle();
    expect(one('[role=alert]').textContent).toContain('Diagnose failed: val is being diagnosed.');
  });

  it('is of the past in a recording: results without buttons', () => {
    mount(it => {
      it.connection = { ...words.running(0.1), state: 'recorded' };
      const label = { path: 'x', started: 0, ended: 60, seconds: 60, bin_s: null, reason: null };
      it.recorded = { ...label, live: false, goodbye: true };
      it.loaders = [{ ...state, ended: true }];
      it.events = events;
    });
    expect(shown('.km-actions')).toBe(false);
    expect(shown('.km-result')).toBe(true);
    expect(shown('.km-verdict')).toBe(true);
  });
});

describe('Tune', () => {
  const result = decode('DiagnosisResult', content.tuned);
  const base = { ...news.diagnosing!, kind: 'tune', total: 0 } as const;
  const ended = { ...base, state: 'done', seconds_left: 0, result } as const;

  it('asks first, and says what it will do', async () => {
    press('Tune').click();
    const question = one('[role=alertdialog][aria-label="Tune?"]');
    expect(question.textContent).toContain('for at most 60 s');
    expect(document.activeElement!.textContent).toBe('Cancel');
    press('Tune', question).click();
    await settle();
    expect(source.tune.mock.calls).toEqual([['loader-1']]);
    expect(source.diagnose).not.toHaveBeenCalled();
  });

  it('shows what it tries and what is left by the time, as nobody knows how many settings come', () => {
    const bar = (): HTMLElement => one('[role=progressbar][aria-label=Tune]');
    show({ diagnosing: { ...base, seconds_left: 60 } });
    show({
      diagnosing: { ...base, seconds_left: 45, message: 'measuring torchvision, 6 workers' }
    });
    expect(bar().getAttribute('aria-valuenow')).toBe('25');
    expect(bar().getAttribute('aria-valuetext')).toBe(
      'Tune: measuring torchvision, 6 workers, 45 s left'
    );
    expect(press('Tune').title).toBe('Not now: settings are being tried.');
    show({ diagnosing: { ...base, state: 'failed', message: 'No training loop is running.' } });
    expect(one('.km-outcome').textContent).toBe('Tune: No training loop is running.');
  });

  it('leaves a line to copy, the way back, and a table of settings', async () => {
    show({ diagnosing: ended });
    expect(one('.km-result summary').textContent).toBe(`Tune${result.sentence}`);
    expect(one('.km-kept code').textContent).toBe(result.line);
    expect(cells('[aria-label="Measured in this loop"]').map(([first]) => first)).toEqual([
      'setting',
      'torchvision, 6 workers',
      'torchvision, 2 workers'
    ]);
    const undo = press('Undo');
    expect(undo.title).toBe('Back to torchvision, 2 workers');
    undo.click();
    await settle();
    expect(source.undoTune).toHaveBeenCalledTimes(1);
    const undone = { ...result, line: null, undo: null };
    show({ diagnosing: { ...ended, result: undone } });
    expect([shown('.km-kept'), shown('.km-result')]).toEqual([false, true]);
  });
});

describe('Profile', () => {
  it('takes ten steps, and shows how far it is', async () => {
    press('Profile 10 steps').click();
    await settle();
    expect(source.profile.mock.calls).toEqual([['loader-1', 10]]);
    show({ profiling: { ...done, state: 'running', done: 4, message: '', result: null } });
    const bar = one('[role=progressbar][aria-label=Profile]');
    expect(bar.getAttribute('aria-valuetext')).toBe('Profile: step 5 of 10');
    expect(bar.getAttribute('aria-valuenow')).toBe('40');
    press('Profile 10 steps').click();
    await settle();
    expect(source.profile).toHaveBeenCalledTimes(1);
  });

  it('has operators of two profiles side by side, per step', () => {
    source.events = events;
    show({ profiling: done });
    expect(cells('[aria-label="CPU operators"]')).toEqual([
      ['CPU operator', 'share with torchvision', 'with dali-cpu', 'ms a step', 'calls a step'],
      ['aten::copy_', '–', '41 %', '21.3', '2'],
      ['aten::addmm', '12 %', '12 %', '6.2', '1'],
      ['aten::convolution', '41 %', '–', '–', '–']
    ]);
    expect(one('[aria-label="GPU kernels"]').querySelector('i')).toBeNull();
    const [, profile] = document.querySelectorAll('.km-result');
    expect(profile!.textContent).toContain('10 steps of dali-cpu, 77.6 ms each');
    expect(profile!.textContent).toContain('The trace is x.json.gz.');
  });

  it('says why there are no GPU kernels', () => {
    const result = { ...done.result!, gpu: [], gpu_reason: 'torch has no CUDA here' };
    show({ profiling: { ...done, result } });
    expect(shown('[aria-label="GPU kernels"]')).toBe(false);
    expect(one('.km-result:not([hidden])').textContent).toContain(
      'GPU kernels: torch has no CUDA here'
    );
  });
});

describe('Mark…', () => {
  it('takes words, and gives the focus back', async () => {
    press('Mark…').click();
    const input = one('.km-mark input') as HTMLInputElement;
    expect(document.activeElement).toBe(input);
    press('Set the mark').click();
    expect(source.mark).not.toHaveBeenCalled();
    input.value = ' augment x12 ';
    press('Set the mark').click();
    await settle();
    expect(source.mark.mock.calls).toEqual([['augment x12']]);
    expect(shown('.km-mark')).toBe(false);
    expect(document.activeElement!.textContent).toBe('Marked');
  });

  it('keeps the words when it failed, and closes on Escape', async () => {
    source.mark.mockRejectedValue(new Error('Nothing is measured.'));
    press('Mark…').click();
    const input = one('.km-mark input') as HTMLInputElement;
    input.value = 'x';
    press('Set the mark').click();
    await settle();
    expect(one('[role=alert]').textContent).toContain('The mark was not set: Nothing is measured.');
    expect(input.value).toBe('x');
    input.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
    expect(shown('.km-mark')).toBe(false);
  });
});
