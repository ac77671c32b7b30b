import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { describe, expect, it, vi } from 'vitest';

import { Chooser } from '../src/page/chooser.js';
import { costText, Deliveries } from '../src/analysis/cost.js';
import { money, number, percent } from '../src/analysis/figures.js';
import { LoaderControl, type LoaderActions } from '../src/loader/loader.js';
import { faster, gainText } from '../src/analysis/gains.js';
import type { Changes, Settings } from '../src/stream/page_messages.js';
import { decode } from '../src/stream/message_check.js';
import { golden, makeRows, makeSchema, range } from './fakes.js';

const SETTINGS: Settings = {
  interval: 0.1,
  history: 600,
  charts: [],
  record: true,
  record_to: null,
  price: 3.6,
  currency: '€'
};
const words = JSON.parse(
  readFileSync(join(import.meta.dirname, '../../tests/wire/faster.json'), 'utf8')
) as [number, number | null, string][];
const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));

describe('what images cost', () => {
  it('comes from the rate of the last minute of deliveries', () => {
    const deliveries = new Deliveries();
    const schema = makeSchema(['cpu/0/busy', 'loader/l/images']);
    // A batch of 32 every second: in one row of ten a tenth of a second's rate of 320.
    const rate = (seq: number, column: number): number =>
      column === 1 && seq % 10 === 0 ? 320 : 0;
    expect(deliveries.rate('l')).toBeNull();
    deliveries.take(makeRows(schema, range(1, 2000), rate));
    expect(deliveries.rate('l')).toBeCloseTo(32, 6);
    // The same again, and the silence after the loop's end, change nothing.
    deliveries.take(makeRows(schema, range(1900, 3000), seq => rate(seq, seq > 2000 ? 0 : 1)));
    expect(deliveries.rate('l')).toBeCloseTo(32, 6);
    // Twice as fast for more than a minute.
    const fast = (seq: number, column: number): number => 2 * rate(seq, column);
    deliveries.take(makeRows(schema, range(3001, 3700), fast));
    expect(deliveries.rate('l')).toBeCloseTo(64, 6);
    deliveries.clear();
    expect(deliveries.rate('l')).toBeNull();
  });

  it('is said per thousand and per epoch', () => {
    expect(costText(SETTINGS, state, 100)).toBe(
      '0.0100 € per 1,000 images · 0.0205 € per epoch of 2,048, at 100 images/s'
    );
    expect(costText({ ...SETTINGS, currency: '$' }, { ...state, planned: null }, 0.5)).toBe(
      '$2.00 per 1,000 images, at 0.5 images/s'
    );
    expect(costText({ ...SETTINGS, price: 0 }, { ...state, planned: null }, 10)).toBe(
      '0.00 € per 1,000 images, at 10 images/s'
    );
    const beside = { ...state, planned: null, backend: 'ray', nodes: 2 };
    expect(costText({ ...SETTINGS, node_price: 1.8 }, beside, 100)).toBe(
      '0.0200 € per 1,000 images, at 100 images/s, on this machine and 2 beside it'
    );
    expect(
      costText({ ...SETTINGS, node_price: 1.8 }, { ...beside, backend: 'dali-cpu' }, 100)
    ).toBe('0.0100 € per 1,000 images, at 100 images/s');
    expect(costText({ ...SETTINGS, price: null }, state, 100)).toBe('');
    expect(costText(null, state, 100)).toBe('');
    expect(costText(SETTINGS, state, null)).toBe('');
  });

  it('keeps the room of its longest figures, so that a shorter one moves nothing', () => {
    const control = new LoaderControl(state, {} as LoaderActions);
    const found = { diagnoses: [], profiles: [] };
    const around = {
      named: false,
      beside: false,
      rate: null,
      recorded: false,
      live: true,
      analysis: null,
      found
    };
    const line = control.el.querySelector<HTMLElement>('.km-cost')!;
    const rooms = [695, 1005, 68].map(rate => {
      control.update(state, {
        ...around,
        cost: costText({ ...SETTINGS, price: 2.5 }, state, rate)
      });
      return [line.textContent.length, line.dataset.whole!.length] as const;
    });
    expect(new Set(rooms.map(([length]) => length)).size).toBeGreaterThan(1);
    expect(new Set(rooms.map(([, room]) => room)).size).toBe(1);
    control.update(state, { ...around, cost: '' });
    expect(line.hidden).toBe(true);
  });

  it('has its figures as the report has them', () => {
    const values = [0.00099996, 0.9996, 0.00201, 0.5, 12.345, 1234.5, 0];
    expect(values.map(value => money(value, '$'))).toEqual([
      '$0.00100',
      '$1.00',
      '$0.00201',
      '$0.500',
      '$12.35',
      '$1,234.50',
      '$0.00'
    ]);
    expect(money(2.5, 'credits')).toBe('2.50 credits');
    expect(money(2.5, '')).toBe('2.50');
    expect([0, 0.004, 0.006].map(percent)).toEqual(['0 %', '<1 %', '1 %']);
    expect([number(NaN), percent(null), number(1203.6), number(0.0234)]).toEqual([
      '–',
      '–',
      '1,204',
      '0.0234'
    ]);
  });
});

describe('the price', () => {
  const asked: Changes[] = [];
  let answer: () => Promise<void> = () => Promise.resolve();
  const failed = vi.fn();

  function mount(settings: Settings): { chooser: Chooser; input: HTMLInputElement } {
    asked.length = 0;
    const chooser = new Chooser({
      configure: changes => {
        asked.push(changes);
        return answer();
      },
      failed
    });
    document.body.replaceChildren(chooser.button, chooser.panel);
    chooser.update(settings, []);
    chooser.open();
    const label = [...document.querySelectorAll('label')].find(
      one => one.textContent === 'Price per hour '
    )!;
    return { chooser, input: label.querySelector('input')! };
  }

  it('is set in words, and shown as the kernel understood it', async () => {
    const { chooser, input } = mount({ ...SETTINGS, price: null, currency: '' });
    expect(input.value).toBe('');
    input.value = '2.5€';
    input.dispatchEvent(new Event('input'));
    // What is being typed is left alone.
    chooser.update(SETTINGS, []);
    expect(input.value).toBe('2.5€');
    input.dispatchEvent(new Event('change'));
    expect(asked).toEqual([{ price: '2.5€' }]);
    chooser.update({ ...SETTINGS, price: 2.5 }, []);
    await settle();
    expect(input.value).toBe('2.50 €');
    input.value = '';
    input.dispatchEvent(new Event('change'));
    expect(asked[1]).toEqual({ price: '' });
  });

  it('goes back to what it was when it is refused', async () => {
    answer = () => Promise.reject(new Error('The price of an hour is a number.'));
    const { input } = mount(SETTINGS);
    input.value = 'much';
    input.dispatchEvent(new Event('input'));
    input.dispatchEvent(new Event('change'));
    await settle();
    expect(failed).toHaveBeenCalledWith('That was not set: The price of an hour is a number.');
    expect(input.value).toBe('3.60 €');
  });
});

describe('a gain', () => {
  const gain = { action: 'dali-cpu', basis: '', by: '' };
  it.each([
    [0.35, 0.55, 0.48, 'dali-cpu: expected 1.5 to 2.2 × faster; measured 1.92 × faster'],
    [0.35, 0.55, null, 'dali-cpu: expected 1.5 to 2.2 × faster'],
    [0.5, 0.5, null, 'dali-cpu: expected 2.0 × faster'],
    [-0.2, 0.1, null, 'dali-cpu: expected between 1.20 × slower and 1.11 × faster'],
    [-0.3, -0.1, -0.2, 'dali-cpu: expected 1.10 to 1.30 × slower; measured 1.20 × slower'],
    [0.1, 0.2, -0.05, 'dali-cpu: expected 1.11 to 1.25 × faster; measured 1.05 × slower'],
    [null, null, 0.3, 'dali-cpu: measured 1.43 × faster'],
    [null, null, null, 'dali-cpu: not known']
  ])('from %s to %s, measured %s', (low, high, measured, text) => {
    expect(gainText({ ...gain, low, high, measured })).toBe(text);
  });

  it('is not called expected where it was tried', () => {
    const tried = { ...gain, low: 0.2, high: 0.4, measured: 0.324, by: 'switch' };
    expect(gainText(tried)).toBe('dali-cpu: measured 1.48 × faster');
    expect(gainText({ ...tried, low: -20 })).toBe(
      'dali-cpu: measured 1.48 × faster, but the steps vary too much to be sure'
    );
  });

  it.each(words)('from %s to %s is %s, as the kernel says it', (low, high, text) => {
    expect(faster(low, high ?? undefined)).toBe(text);
  });
});
