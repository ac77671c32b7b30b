import { describe, expect, it } from 'vitest';

import { counterText, CounterView, wrongText } from '../src/loader/counter.js';
import { decode } from '../src/stream/message_check.js';
import { golden } from './fakes.js';

const told = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;
const state = { ...told, samples: 992, skipped: 0, skips: [] };

describe('the counter', () => {
  it('tells epoch, batch, samples and who decoded them', () => {
    const decoded = { torchvision: 480, 'dali-cpu': 512, 'dali-gpu': 0 };
    expect(counterText({ ...state, decoded })).toBe(
      'epoch 2 · batch 31 of 64 · 992 of 2,048 samples, each once · 512 by dali-cpu, 480 by torchvision'
    );
    expect(counterText({ ...state, batches: null, planned: null, decoded })).toContain(
      'batch 31 · 992 samples'
    );
    expect(counterText({ ...state, epoch: 0, batch: 0 })).toBe('No batch delivered yet.');
  });

  it('does not vouch for the samples of what is only watched', () => {
    expect(counterText({ ...state, backends: [], decoded: {} })).toBe(
      'epoch 2 · batch 31 of 64 · 992 of 2,048 samples'
    );
  });

  it('vouches for all ranks of a job only where their samplers share the samples out', () => {
    const job = { ...state, ranks: 2, once: true, padded: 1, decoded: {} };
    expect(counterText(job)).toBe(
      'epoch 2 · batch 31 of 64 · 992 of 2,048 samples, each once · 1 planned twice as padding'
    );
    expect(counterText({ ...job, once: false, padded: 0 })).toBe(
      'epoch 2 · batch 31 of 64 · 992 of 2,048 samples'
    );
  });

  it('tells of samples replaced and skipped beside those delivered', () => {
    const decoded = { torchvision: 893 };
    expect(counterText({ ...state, samples: 893, replaced: 96, skipped: 3, decoded })).toBe(
      'epoch 2 · batch 31 of 64 · 893 of 2,048 samples, each once · 96 replaced by synthetic · 3 skipped' +
        ' · 893 by torchvision'
    );
    const none = { ...state, epoch: 0, batch: 0, samples: 0, skipped: 32, decoded: {} };
    expect(counterText(none)).toBe('epoch 1 · batch 0 of 64 · 0 of 2,048 samples · 32 skipped');
  });

  it('is loud when a sample is lost or doubled', () => {
    expect(wrongText(state)).toBe('');
    const wrong = { ...state, lost: 2, doubled: 1 };
    expect(counterText(wrong)).not.toContain('each once');
    expect(wrongText(wrong)).toBe('Samples of this epoch: 2 lost, 1 delivered twice.');
  });

  it('keeps free what the line will take at the end of the epoch', () => {
    const view = new CounterView();
    const room = view.el.querySelector<HTMLElement>('.km-counts')!;
    const early = { ...state, backend: 'torchvision', batch: 3, samples: 48 };
    view.update({ ...early, decoded: { torchvision: 48, 'dali-gpu': 0 } });
    expect(room.textContent).toContain('48 of 2,048 samples');
    expect(room.dataset.whole).toBe(
      'epoch 2 · batch 64 of 64 · 2,048 of 2,048 samples, each once · 2,048 by torchvision'
    );
    const whole = room.dataset.whole;
    view.update({ ...early, batch: 0, samples: 1, decoded: {} });
    expect(room.dataset.whole).toBe(whole);
    view.update({ ...early, batches: null, planned: null, decoded: { torchvision: 48 } });
    expect(room.dataset.whole).toBe(
      'epoch 2 · batch 3 · 48 samples, each once · 48 by torchvision'
    );
    view.update({ ...early, backends: [], decoded: {} });
    expect(room.dataset.whole).not.toContain(' by ');
  });

  it('lists the last samples that were skipped, as text', () => {
    const view = new CounterView();
    const details = (): HTMLElement => view.el.querySelector<HTMLElement>('.km-skips')!;
    const lines = (): string[] => [...view.el.querySelectorAll('li')].map(el => el.textContent);
    view.update(state);
    expect(details().hidden).toBe(true);
    view.update(told);
    expect(details().hidden).toBe(false);
    expect(view.el.querySelector('summary')!.textContent).toBe('Skipped');
    expect(lines()).toEqual(['612: train/n01/<i>cat</i>.jpg (cannot identify image file)']);
    expect(view.el.querySelector('i')).toBeNull();
    const [before] = view.el.querySelectorAll('li');
    const skips = [1, 2].map(index => ({ index: index * 1000, path: 'x', reason: 'y' }));
    view.update({ ...told, skipped: 7, skips });
    expect(view.el.querySelector('summary')!.textContent).toBe('Skipped, the last 2');
    expect(lines()).toEqual(['1,000: x (y)', '2,000: x (y)']);
    expect(view.el.querySelector('li')).toBe(before);
    view.update({ ...told, skips: [{ index: -1, path: "('a', 3): x", reason: 'y' }] }); // a key that is no index
    expect(lines()).toEqual(["('a', 3): x (y)"]);
    view.update(state);
    expect(lines()).toEqual([]);
  });
});
