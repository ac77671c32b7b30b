import { beforeEach, describe, expect, it } from 'vitest';

import { Controls } from '../src/page/controls.js';
import { decode } from '../src/stream/message_check.js';
import type { LoaderState } from '../src/stream/page_messages.js';
import { golden } from './fakes.js';
import { FakeSource } from './fakesource.js';

const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;
const asks = state.backends.find(({ name }) => name === 'synthetic')!.confirm!;

let source: FakeSource;
let controls: Controls;

const radio = (name: string): HTMLElement =>
  document.querySelector<HTMLElement>(`[role=radio][aria-label="${name}"]`)!;
const dialog = (): HTMLElement => document.querySelector<HTMLElement>('[role=alertdialog]')!;
const press = (name: string): void =>
  [...dialog().querySelectorAll('button')].find(el => el.textContent === name)!.click();
const key = (name: string): boolean =>
  document.activeElement!.dispatchEvent(
    new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true })
  );
const show = (changes: Partial<LoaderState>): void => {
  source.loaders = [{ ...state, wanted: null, ...changes }];
  controls.update();
};
const checked = (): string | null =>
  document.querySelector('[role=radio][aria-checked=true]')!.getAttribute('aria-label');

beforeEach(() => {
  source = new FakeSource();
  controls = new Controls(source, { onWindow: () => undefined, onRequest: () => undefined });
  document.body.replaceChildren(controls.el);
});

describe('a backend with a question', () => {
  it('has the word for what is confirmed', () => {
    radio('ray').click();
    press('Start');
    expect(source.asked).toEqual([['loader-1', 'ray', true]]);
  });

  it.each([
    ['click', () => radio('synthetic').click()],
    ['Space', () => (radio('synthetic').focus(), key(' '))],
    ['Enter', () => (radio('synthetic').focus(), key('Enter'))]
  ])('asks it first, in the kernel’s words: by %s', (_, choose) => {
    expect(dialog().hidden).toBe(true);
    choose();
    expect(dialog().hidden).toBe(false);
    const text = document.getElementById(dialog().getAttribute('aria-describedby')!)!;
    expect(text.textContent).toBe(asks);
    expect(dialog().contains(document.activeElement)).toBe(true);
    expect(document.activeElement!.textContent).toBe('Cancel');
    expect(source.asked).toEqual([]);
    expect(checked()).toBe('torchvision');
    press('Replay');
    expect(source.asked).toEqual([['loader-1', 'synthetic', true]]);
    expect(checked()).toBe('synthetic');
    expect(dialog().hidden).toBe(true);
    expect(document.activeElement).toBe(radio('synthetic'));
  });

  it.each([
    ['Cancel', () => press('Cancel')],
    ['Escape', () => key('Escape')]
  ])('is left alone after %s', (_, cancel) => {
    radio('synthetic').click();
    cancel();
    expect(dialog().hidden).toBe(true);
    expect(source.asked).toEqual([]);
    expect(checked()).toBe('torchvision');
    expect(document.activeElement).toBe(radio('synthetic'));
  });

  it('keeps its keys from JupyterLab', () => {
    radio('synthetic').click();
    let heard = 0;
    const listen = (): void => void (heard += 1);
    document.addEventListener('keydown', listen);
    key('Enter');
    key('a');
    document.removeEventListener('keydown', listen);
    expect(heard).toBe(0);
  });

  it('is not asked about twice, nor when it is in use', () => {
    show({ backend: 'synthetic' });
    radio('synthetic').click();
    expect(dialog().hidden).toBe(true);
    expect(source.asked).toEqual([['loader-1', 'synthetic', false]]);
    show({ backend: 'synthetic', wanted: 'torchvision' });
    source.asked.length = 0;
    controls = new Controls(source, { onWindow: () => undefined, onRequest: () => undefined });
    document.body.replaceChildren(controls.el);
    radio('synthetic').click();
    expect(dialog().hidden).toBe(false);
    expect(source.asked).toEqual([]);
  });

  it('asks nothing any more when another is chosen or the loader ends', () => {
    radio('synthetic').click();
    radio('dali-cpu').click();
    expect(dialog().hidden).toBe(true);
    expect(source.asked).toEqual([['loader-1', 'dali-cpu', false]]);
    radio('synthetic').click();
    show({ ended: true });
    expect(dialog().hidden).toBe(true);
  });

  it('shows the question as text', () => {
    const backends = state.backends.map(one =>
      one.name === 'synthetic' ? { ...one, confirm: 'Is <b>this</b> what you want?' } : one
    );
    show({ backends });
    radio('synthetic').click();
    expect(dialog().querySelector('b')).toBeNull();
    expect(dialog().textContent).toContain('Is <b>this</b> what you want?');
  });
});
