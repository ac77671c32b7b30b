import { beforeEach, describe, expect, it, vi } from 'vitest';

import type { AnalysisState, Offer } from '../src/analysis/analysis.js';
import { decode } from '../src/stream/message_check.js';
import { Controls } from '../src/page/controls.js';
import { golden } from './fakes.js';
import { FakeSource } from './fakesource.js';

const { content } = golden('analysis');
const news = decode('Frame', { ...golden('frame').content, ...content });
const offer = news.offers![0]!;

let source: FakeSource;
let controls: Controls;

const line = (): HTMLElement => document.querySelector<HTMLElement>('.km-offer')!;
const sentence = (): HTMLElement => line().querySelector<HTMLElement>('[aria-live=polite]')!;
const press = (name: string): HTMLButtonElement | undefined =>
  [...document.querySelectorAll('button')].find(
    el => el.textContent === name && el.closest('[hidden]') === null
  );
const radio = (name: string): HTMLElement =>
  document.querySelector<HTMLElement>(`[role=radio][aria-label=${name}]`)!;
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));
const known = (offers: readonly Offer[] = []): AnalysisState => ({
  verdict: null,
  verdicts: new Map(),
  offers,
  diagnosing: null,
  profiling: null,
  ranks: [],
  notices: [],
  main: null
});
const show = (offers?: readonly Offer[]): void => {
  source.analysis = known(offers);
  controls.update();
};

beforeEach(() => {
  source = new FakeSource();
  source.analysis = known([offer]);
  controls = new Controls(source, { onWindow: () => undefined, onRequest: () => undefined });
  document.body.replaceChildren(controls.el);
});

describe('an offer', () => {
  it('stands below the verdict, with the sentence and two buttons', () => {
    expect(sentence().textContent).toBe(
      'dali-cpu is ready: it is expected to run 1.5 to 2.2 × faster than torchvision.'
    );
    // Below what is pressed, so that nothing moves away from under the pointer.
    const follows = (selector: string): number =>
      line().compareDocumentPosition(document.querySelector(selector)!);
    expect(follows('.km-verdict')).toBe(Node.DOCUMENT_POSITION_PRECEDING);
    expect(follows('.km-bar')).toBe(Node.DOCUMENT_POSITION_PRECEDING);
    expect(follows('.km-insight')).toBe(Node.DOCUMENT_POSITION_FOLLOWING);
    expect([press('Switch to dali-cpu'), press('No thanks')]).not.toContain(undefined);
  });

  it('is told once: the same sentence is not set again', async () => {
    const changed = vi.fn();
    const observer = new MutationObserver(changed);
    observer.observe(sentence(), { childList: true, characterData: true, subtree: true });
    show([{ ...offer }]);
    await settle();
    expect(changed).not.toHaveBeenCalled();
    show([]);
    await settle();
    expect(changed).toHaveBeenCalledTimes(1);
    observer.disconnect();
  });

  it('is taken as if the radio had been chosen, and the focus goes there', async () => {
    const yes = press('Switch to dali-cpu')!;
    yes.focus();
    yes.click();
    expect(source.asked).toEqual([[offer.loader, 'dali-cpu', false]]);
    expect(radio('dali-cpu').getAttribute('aria-checked')).toBe('true');
    source.loaders = [{ ...source.loaders[0]!, wanted: 'dali-cpu' }];
    controls.update();
    await settle();
    expect(sentence().textContent).toBe('');
    expect(press('Switch to dali-cpu')).toBeUndefined();
    expect(document.activeElement).toBe(radio('dali-cpu'));
  });

  it('that cannot be taken says why, as the radio does', async () => {
    source.answer = () => Promise.reject(new Error('there is no DALI'));
    press('Switch to dali-cpu')!.click();
    await settle();
    expect(document.querySelector('[role=alert]')!.textContent).toContain(
      'dali-cpu was not taken: there is no DALI'
    );
    expect(radio('torchvision').getAttribute('aria-checked')).toBe('true');
  });

  it('is declined at the kernel, once, and is gone when the kernel says so', async () => {
    const no = press('No thanks')!;
    no.focus();
    no.click();
    no.click();
    expect(source.decline.mock.calls).toEqual([[offer.loader]]);
    expect(sentence().textContent).not.toBe('');
    show([]);
    await settle();
    expect(sentence().textContent).toBe('');
    expect(document.activeElement).toBe(radio('torchvision'));
  });

  it('whose no does not reach the kernel stays, and says why', async () => {
    source.decline.mockRejectedValueOnce(new Error('the kernel is gone'));
    press('No thanks')!.click();
    await settle();
    expect(document.querySelector('[role=alert]')!.textContent).toContain('the kernel is gone');
    expect(press('No thanks')).toBeDefined();
  });

  it('is gone when another engine is asked for, and never of a loader that has ended', () => {
    source.loaders = [{ ...source.loaders[0]!, wanted: 'synthetic' }];
    controls.update();
    expect(press('No thanks')).toBeUndefined();
    source.loaders = [{ ...source.loaders[0]!, wanted: null, ended: true }];
    controls.update();
    expect(press('No thanks')).toBeUndefined();
  });

  it('takes no focus that it did not have', () => {
    radio('torchvision').focus();
    show([]);
    show([offer]);
    expect(document.activeElement).toBe(radio('torchvision'));
  });

  it('is for its own loader only', () => {
    show([{ ...offer, loader: 'loader-9' }]);
    expect(press('No thanks')).toBeUndefined();
  });

  it('shows what the kernel calls it as text', () => {
    show([{ ...offer, sentence: '<b>x</b> is ready.' }]);
    expect(sentence().textContent).toBe('<b>x</b> is ready.');
    expect(sentence().children).toHaveLength(0);
  });
});

it('that has not the form of an offer is refused', () => {
  expect(() => decode('FindingsReply', { status: 'ok', offers: [{ loader: 'loader-1' }] })).toThrow(
    'OfferState: source is not a string.'
  );
});
