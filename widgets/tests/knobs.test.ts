import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Controls } from '../src/page/controls.js';
import { decode } from '../src/stream/message_check.js';
import type { Knobs, LoaderState } from '../src/stream/page_messages.js';
import { golden } from './fakes.js';
import { FakeSource } from './fakesource.js';

const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;

let source: FakeSource;
let controls: Controls;

function show(changes: Partial<LoaderState> = {}): void {
  source.loaders = [{ ...state, wanted: null, ...changes }];
  controls.update();
}

const input = (label: string): HTMLInputElement =>
  [...document.querySelectorAll('label')].find(el => el.textContent === label)!
    .control as HTMLInputElement;
const step = (label: string): void =>
  document.querySelector<HTMLButtonElement>(`[aria-label="${label}"]`)!.click();
const pending = (label: string): boolean =>
  input(label).closest('.km-stepper')!.getAttribute('aria-busy') === 'true';
const type = (label: string, text: string): void => {
  input(label).focus();
  input(label).value = text;
  input(label).dispatchEvent(new Event('input', { bubbles: true }));
};
const after = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const alert = (): HTMLElement => document.querySelector<HTMLElement>('[role=alert]')!;
const knobs = (changes: Partial<Knobs>): Knobs => ({ ...state.knobs, ...changes });

beforeEach(() => {
  vi.useFakeTimers();
  source = new FakeSource();
  controls = new Controls(source, { onWindow: () => undefined, onRequest: () => undefined });
  document.body.replaceChildren(controls.el);
});
afterEach(() => vi.useRealTimers());

describe('the knobs', () => {
  it('are labelled numbers with the kernel’s values, folded into one line', () => {
    show();
    const inputs = [...document.querySelectorAll<HTMLInputElement>('.km-knobs input')];
    expect(inputs.map(el => [el.type, el.labels![0]!.textContent, el.value, el.min])).toEqual([
      ['number', 'Workers', '2', '0'],
      ['number', 'Prefetch', '2', '1'],
      ['number', 'Threads', '4', '1']
    ]);
    const details = document.querySelector<HTMLDetailsElement>('.km-knobs')!;
    expect(details.open).toBe(false);
    expect(details.querySelector('summary')!.textContent).toBe(
      'Workers 2 · Prefetch 2 · Threads 4'
    );
  });

  it('are sent together once they have settled', async () => {
    show();
    step('More: Workers');
    step('More: Workers');
    await after(200);
    step('Fewer: Threads');
    await after(290);
    expect(source.set).not.toHaveBeenCalled();
    expect([input('Workers').value, input('Threads').value]).toEqual(['4', '3']);
    expect([pending('Workers'), pending('Prefetch'), pending('Threads')]).toEqual([
      true,
      false,
      true
    ]);
    await after(20);
    expect(source.set.mock.calls).toEqual([['loader-1', { workers: 4, threads: 3 }]]);
  });

  it('are pending until the kernel’s own values are shown', async () => {
    let answer: (state: LoaderState) => void = () => undefined;
    source.set.mockImplementation(() => new Promise(resolve => (answer = resolve)));
    show();
    type('Workers', '6');
    await after(1000);
    show();
    expect([input('Workers').value, pending('Workers')]).toEqual(['6', true]);
    const set = { ...state, knobs: knobs({ workers: 6 }) };
    answer(set);
    await after(10);
    // A frame that left the kernel before the change did.
    show();
    expect(input('Workers').value).toBe('6');
    show(set);
    await after(300);
    expect([input('Workers').value, pending('Workers')]).toEqual(['6', false]);
    show({ knobs: knobs({ workers: 3 }) });
    expect(input('Workers').value).toBe('3');
  });

  it('go back when the kernel refuses, and say why', async () => {
    source.set.mockRejectedValue(new Error('A forked <b>worker</b> is not safe here.'));
    show();
    step('More: Workers');
    await after(310);
    expect([input('Workers').value, pending('Workers')]).toEqual(['2', false]);
    expect(alert().hidden).toBe(false);
    expect(alert().textContent).toContain(
      'workers=3 was not taken: A forked <b>worker</b> is not safe here.'
    );
  });

  it('keep what was changed while an answer was under way', async () => {
    let refuse: (error: Error) => void = () => undefined;
    source.set.mockImplementationOnce(() => new Promise((_, reject) => (refuse = reject)));
    show();
    step('More: Workers');
    await after(310);
    step('More: Workers');
    refuse(new Error('busy'));
    await after(10);
    expect(input('Workers').value).toBe('4');
    await after(310);
    expect(source.set).toHaveBeenLastCalledWith('loader-1', { workers: 4 });
  });

  it('wait for a whole number while somebody types', async () => {
    show();
    type('Workers', '');
    show();
    await after(1000);
    expect(input('Workers').value).toBe('');
    expect(source.set).not.toHaveBeenCalled();
    input('Workers').dispatchEvent(new Event('change'));
    expect(input('Workers').value).toBe('2');
    type('Workers', '2.5');
    await after(1000);
    expect(source.set).not.toHaveBeenCalled();
  });

  it('are not sent when they are what they were', async () => {
    show();
    step('More: Workers');
    step('Fewer: Workers');
    await after(1000);
    expect(source.set).not.toHaveBeenCalled();
    expect(pending('Workers')).toBe(false);
  });

  it('go no lower than makes sense', async () => {
    show({ knobs: knobs({ workers: 0, prefetch: 1 }) });
    step('Fewer: Workers');
    step('Fewer: Prefetch');
    await after(1000);
    expect(source.set).not.toHaveBeenCalled();
  });

  it('are disabled with the reason where they do not apply', () => {
    const backends = state.backends.map(one =>
      one.name === 'dali-cpu' ? { ...one, available: false, reason: 'DALI is for Linux.' } : one
    );
    show({ knobs: knobs({ workers: 0, threads: null }), backends });
    const disabled = ['Workers', 'Prefetch', 'Threads'].map(label => input(label).disabled);
    expect(disabled).toEqual([false, true, true]);
    const why = document.getElementById(input('Threads').getAttribute('aria-describedby')!)!;
    expect(why.hidden).toBe(false);
    expect(why.textContent).toBe(
      'Prefetch: without workers nothing is loaded ahead.\nThreads: DALI is for Linux.'
    );
    show();
    expect(input('Threads').disabled).toBe(false);
    expect(input('Threads').hasAttribute('aria-describedby')).toBe(false);
    expect(why.hidden).toBe(true);
  });

  it('keep their keys from JupyterLab’s shortcuts', () => {
    show();
    const heard = vi.fn();
    document.addEventListener('keydown', heard);
    input('Workers').dispatchEvent(new KeyboardEvent('keydown', { key: '1', bubbles: true }));
    document.removeEventListener('keydown', heard);
    expect(heard).not.toHaveBeenCalled();
    expect(input('Workers').closest('[data-lm-suppress-shortcuts]')).not.toBeNull();
  });

  it('are gone with the loader, and so is what was to be sent', async () => {
    show();
    step('More: Workers');
    source.loaders = [];
    controls.update();
    await after(1000);
    expect(source.set).not.toHaveBeenCalled();
    show({ ended: true });
    expect(document.querySelector<HTMLElement>('.km-knobs')!.hidden).toBe(true);
  });

  it('gives its pipeline as code, where there is one', async () => {
    const written = vi.fn(() => Promise.resolve());
    vi.stubGlobal('navigator', { clipboard: { writeText: written } });
    try {
      const code = (): HTMLButtonElement => document.querySelector<HTMLButtonElement>('.km-code')!;
      expect(code().hidden).toBe(false);
      code().click();
      await vi.waitFor(() => expect(code().textContent).toBe('Copied'));
      expect(source.code.mock.calls).toEqual([['loader-1']]);
      expect(written.mock.calls).toEqual([['import torch\n']]);
      source.code.mockRejectedValue(new Error('GaussianBlur has no code form.'));
      code().click();
      await vi.waitFor(() =>
        expect(document.querySelector('[role=alert]')!.textContent).toContain('has no code form')
      );
      show({ backends: state.backends.filter(({ name }) => !name.startsWith('dali-')) });
      expect(code().hidden).toBe(true);
    } finally {
      vi.unstubAllGlobals();
    }
  });
});
