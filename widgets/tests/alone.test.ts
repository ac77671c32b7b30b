import { beforeEach, describe, expect, it, vi } from 'vitest';

import { AloneView } from '../src/page/alone.js';

const run = vi.fn((): Promise<void> => Promise.resolve());
const stop = vi.fn((): Promise<void> => Promise.resolve());
const ended = { job: 2, question: 'This runs train.py once more.', running: false };
let view: AloneView;

const shown = (name: string): HTMLButtonElement | undefined =>
  [...document.querySelectorAll('button')].find(
    el => el.textContent === name && el.closest('[hidden]') === null
  );
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));

beforeEach(() => {
  run.mockReset().mockResolvedValue();
  stop.mockReset().mockResolvedValue();
  view = new AloneView({ run, stop });
  document.body.replaceChildren(view.el);
});

describe('running one rank alone', () => {
  it('is offered for a job that has ended, and for nothing else', () => {
    expect(view.el.hidden).toBe(true);
    view.update(ended);
    expect(shown('How well does job 2 scale?')).toBeDefined();
    expect(shown('End the run')).toBeUndefined();
    view.update(null);
    expect(view.el.hidden).toBe(true);
  });

  it('asks first: the script runs again', async () => {
    view.update(ended);
    shown('How well does job 2 scale?')!.click();
    expect(view.el.textContent).toContain('This runs train.py once more.');
    shown('Cancel')!.click();
    await settle();
    expect(run).not.toHaveBeenCalled();
    shown('How well does job 2 scale?')!.click();
    shown('Run one rank alone')!.click();
    await settle();
    expect(run.mock.calls).toEqual([[2]]);
  });

  it('can be stopped while it runs', async () => {
    view.update({ ...ended, question: '', running: true });
    expect(shown('How well does job 2 scale?')).toBeUndefined();
    shown('End the run')!.click();
    await settle();
    expect(stop).toHaveBeenCalledOnce();
  });

  it('says why it did not begin', async () => {
    run.mockRejectedValueOnce(new Error('Job 2 cannot be run alone: it still runs.'));
    view.update(ended);
    shown('How well does job 2 scale?')!.click();
    shown('Run one rank alone')!.click();
    await settle();
    expect(document.querySelector('[role=alert]')!.textContent).toContain('it still runs');
    expect(view.el.hidden).toBe(false);
  });

  it('withdraws its question when the job runs again', () => {
    view.update(ended);
    shown('How well does job 2 scale?')!.click();
    view.update(null);
    view.update(ended);
    expect(document.querySelector<HTMLElement>('[role=alertdialog]')!.hidden).toBe(true);
  });
});
