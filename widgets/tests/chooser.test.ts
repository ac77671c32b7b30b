import { beforeEach, describe, expect, it, vi } from 'vitest';

import { Chooser } from '../src/page/chooser.js';
import { recordingText, RecordingView } from '../src/page/recording.js';
import type { ChartChoice, Changes, Settings } from '../src/stream/page_messages.js';
import { WindowChooser } from '../src/charts/windows.js';

const SETTINGS: Settings = {
  interval: 0.1,
  history: 600,
  charts: ['cpu', 'gpu'],
  record: true,
  record_to: null,
  price: null,
  currency: ''
};
const chart = (id: string, title: string, rest: Partial<ChartChoice> = {}): ChartChoice => ({
  id,
  title,
  available: true,
  default: false,
  reason: null,
  ...rest
});
const CHARTS = [
  chart('cpu', 'CPU', { default: true }),
  chart('gpu', 'GPU', { available: false, default: true, reason: 'NVML Shared Library Not Found' }),
  chart('pressure', 'Pressure'),
  chart('gpu-bus', 'PCIe <b>', { available: false, reason: 'NVML Shared Library Not Found' })
];

const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));
const box = (title: string): HTMLInputElement =>
  [...document.querySelectorAll('label')]
    .find(label => label.textContent === title)!
    .querySelector('input')!;

describe('the choice of charts', () => {
  let chooser: Chooser;
  let answer: (changes: Changes) => Promise<void>;
  const asked: Changes[] = [];
  const failed = vi.fn();

  beforeEach(() => {
    asked.length = 0;
    answer = () => Promise.resolve();
    chooser = new Chooser({
      configure: changes => {
        asked.push(changes);
        return answer(changes);
      },
      failed
    });
    document.body.replaceChildren(chooser.button, chooser.panel);
    chooser.update(SETTINGS, CHARTS);
  });

  it('opens by its button, takes the focus, and gives it back on Escape', () => {
    expect(chooser.panel.hidden).toBe(true);
    chooser.button.click();
    expect(chooser.panel.hidden).toBe(false);
    expect(chooser.button.getAttribute('aria-expanded')).toBe('true');
    expect(document.activeElement).toBe(box('CPU'));
    const outside = vi.fn();
    document.body.addEventListener('keydown', outside);
    box('CPU').dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
    expect(outside).not.toHaveBeenCalled();
    expect(chooser.panel.hidden).toBe(true);
    expect(document.activeElement).toBe(chooser.button);
  });

  it('shows what is chosen, and why a chart cannot be', () => {
    chooser.open();
    const inputs = [...chooser.panel.querySelectorAll<HTMLInputElement>('.km-choice input')];
    expect(inputs.map(input => input.checked)).toEqual([true, true, false, false]);
    expect(inputs.map(input => input.disabled)).toEqual([false, false, false, true]);
    const bus = box('PCIe <b>');
    const why = document.getElementById(bus.getAttribute('aria-describedby')!);
    expect(why?.textContent).toBe('NVML Shared Library Not Found');
    expect(chooser.panel.querySelector('b')).toBeNull();
  });

  it('asks for the charts with one more or one less', async () => {
    chooser.open();
    box('Pressure').click();
    expect(asked).toEqual([{ charts: ['cpu', 'gpu', 'pressure'] }]);
    // Before the answer, what was asked for counts.
    box('GPU').click();
    expect(asked[1]).toEqual({ charts: ['cpu', 'pressure'] });
    chooser.update({ ...SETTINGS, charts: ['cpu', 'pressure'] }, CHARTS);
    await settle();
    expect(box('GPU').checked).toBe(false);
    expect(box('Pressure').checked).toBe(true);
  });

  it('goes back when the kernel refuses, and says why', async () => {
    chooser.open();
    answer = () => Promise.reject(new Error('Name at least one chart.'));
    box('CPU').click();
    expect(box('CPU').checked).toBe(false);
    await settle();
    expect(box('CPU').checked).toBe(true);
    expect(failed).toHaveBeenCalledWith('That was not set: Name at least one chart.');
  });

  it('sets the interval, one of its own too, and the recording', () => {
    chooser.update({ ...SETTINGS, interval: 0.05 }, CHARTS);
    chooser.open();
    const select = chooser.panel.querySelector('select')!;
    expect([...select.options].map(option => option.textContent)).toEqual(
      ['0.05', '0.1', '0.2', '0.5', '1', '2', '5'].map(seconds => `${seconds} s`)
    );
    expect(select.value).toBe('0.05');
    select.value = '2';
    select.dispatchEvent(new Event('change'));
    box('Record the session').click();
    expect(asked).toEqual([{ interval: 2 }, { record: false }]);
  });

  it('is not there where the kernel has no settings', () => {
    chooser.open();
    chooser.update(null, []);
    expect(chooser.button.hidden).toBe(true);
    expect(chooser.panel.hidden).toBe(true);
    chooser.open();
    expect(chooser.panel.hidden).toBe(true);
  });
});

describe('the recording’s state', () => {
  it('is quiet while it records, and gives the reason when it does not', () => {
    const view = new RecordingView();
    view.update({ state: 'recording', path: '/s/a.kmsession', message: '' });
    expect(view.el.textContent).toBe('●recording');
    expect(view.el.title).toBe('/s/a.kmsession');
    expect(view.el.getAttribute('role')).toBe('status');
    view.update({ state: 'stopped', path: '/s/a.kmsession', message: 'the disk is full' });
    expect(view.el.textContent).toBe('●not recording: the disk is full');
    expect(view.el.dataset.state).toBe('stopped');
    view.update(null);
    expect(view.el.hidden).toBe(true);
  });

  it('has words for each state', () => {
    const say = (state: 'moved' | 'off' | 'stopped', message: string): string =>
      recordingText({ state, path: null, message });
    expect(say('off', 'Recording is off.')).toBe('not recording');
    expect(say('stopped', '')).toBe('not recording');
    expect(say('moved', 'home is read-only')).toBe('recording: home is read-only');
  });
});

describe('the time shown', () => {
  const shown: number[] = [];
  const labels = (chooser: WindowChooser): string[] =>
    [...chooser.el.children].map(
      one => one.textContent + (one.getAttribute('aria-pressed') === 'true' ? '*' : '')
    );

  beforeEach(() => {
    shown.length = 0;
  });

  it('is one minute at first, and as much as the kernel keeps at most', () => {
    const chooser = new WindowChooser(seconds => shown.push(seconds), vi.fn());
    chooser.update(600, false);
    expect(labels(chooser)).toEqual(['1 min*', '5 min', '10 min']);
    expect(shown).toEqual([]);
    chooser.update(3600, false);
    expect(labels(chooser)).toEqual(['1 min*', '5 min', '10 min', '60 min']);
    (chooser.el.lastElementChild as HTMLElement).click();
    expect(shown).toEqual([3600]);
    chooser.update(300, false);
    expect(labels(chooser)).toEqual(['1 min', '5 min*']);
    expect(shown).toEqual([3600, 300]);
  });

  it('is all of a recorded session at first, also when the session has grown', () => {
    const chooser = new WindowChooser(seconds => shown.push(seconds), vi.fn());
    chooser.update(600, false);
    chooser.update(1872, true);
    expect(labels(chooser)).toEqual(['1 min', '5 min', '10 min', 'All*', '+', '−']);
    chooser.update(1900, true);
    expect(shown).toEqual([1872, 1900]);
    (chooser.el.firstElementChild as HTMLElement).click();
    chooser.update(1950, true);
    expect(labels(chooser)).toEqual(['1 min*', '5 min', '10 min', 'All', '+', '−']);
    chooser.update(20, true);
    expect(labels(chooser)).toEqual(['All*', '+', '−']);
  });

  it('of a recorded session can be zoomed, about its middle', () => {
    const zooms: number[] = [];
    const chooser = new WindowChooser(vi.fn(), factor => zooms.push(factor));
    chooser.update(100, true);
    chooser.el.querySelector<HTMLElement>('[aria-label="Zoom in"]')!.click();
    chooser.el.querySelector<HTMLElement>('[aria-label="Zoom out"]')!.click();
    expect(zooms).toEqual([0.5, 2]);
    expect(labels(chooser)).toEqual(['1 min', 'All*', '+', '−']);
  });
});
