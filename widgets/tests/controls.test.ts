import { beforeEach, describe, expect, it, vi } from 'vitest';

import * as words from '../src/stream/connection.js';
import { Controls } from '../src/page/controls.js';
import { decode } from '../src/stream/message_check.js';
import type { LoaderState } from '../src/stream/page_messages.js';
import { golden } from './fakes.js';
import { FakeSource, training } from './fakesource.js';

const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;
const strip = decode('SubscribeReply', golden('reply-subscribe').content).strip;

let source: FakeSource;
let controls: Controls;
const windows: number[] = [];

function mount(change: (source: FakeSource) => void = () => undefined): void {
  source = new FakeSource();
  change(source);
  controls = new Controls(source, {
    onWindow: seconds => windows.push(seconds),
    onRequest: () => undefined
  });
  document.body.replaceChildren(controls.el);
}

const all = (role: string): HTMLElement[] => [
  ...document.querySelectorAll<HTMLElement>(`[role=${role}]`)
];
const radio = (name: string): HTMLElement =>
  all('radio').find(el => el.getAttribute('aria-label') === name)!;
const press = (name: string): HTMLButtonElement =>
  [...document.querySelectorAll('button')].find(el => el.textContent === name)!;
const status = (): string => all('status')[0]!.textContent;
const checked = (): (string | null)[] =>
  all('radio')
    .filter(el => el.getAttribute('aria-checked') === 'true')
    .map(el => el.getAttribute('aria-label'));
const key = (name: string): boolean =>
  document.activeElement!.dispatchEvent(
    new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true })
  );
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 5));

beforeEach(() => {
  windows.length = 0;
  mount();
});

describe('a loader that is only watched', () => {
  it('shows every engine grey, with the reason, and claims nothing of its samples', () => {
    const reason = 'The data set is iterable-style.';
    mount(source => {
      const [first] = source.loaders;
      const backends = ['dali-cpu', 'synthetic'].map(name => {
        return { name, available: false, reason, confirm: null, note: null };
      });
      source.loaders = [{ ...first!, name: 'stream', backend: 'loader', backends, decoded: {} }];
    });
    expect(controls.el.textContent).toContain('Watched stream');
    for (const name of ['dali-cpu', 'synthetic']) {
      expect(radio(name).getAttribute('aria-disabled')).toBe('true');
      expect(radio(name).title).toBe(reason);
    }
    const lines = [...document.querySelectorAll<HTMLElement>('.km-reason')];
    expect(
      lines.filter(el => !el.hidden && el.textContent.includes(reason)).map(el => el.textContent)
    ).toEqual([`dali-cpu, synthetic: ${reason}`]);
    expect(radio('dali-cpu').closest<HTMLElement>('[role=radiogroup]')!.hidden).toBe(false);
    expect(controls.el.textContent).not.toContain('each once');
  });
});

describe('an engine that was refused', () => {
  const reason = 'Cached keeps its images: load them in __init__.';
  const refused = 'dali-cpu cannot be used: Cached keeps its images: load them in __init__';

  it.each([
    ['its reason stands beside the engines', false, 'dali-cpu cannot be used; torchvision goes on'],
    ['the reasons are shown on request', true, `${refused}; torchvision goes on`]
  ])('has its reason once: %s', (_, isGpuUsable, text) => {
    mount(source => {
      const [first] = source.loaders;
      const backends = first!.backends.map(one => {
        const available = one.name === 'dali-gpu' ? isGpuUsable : one.name !== 'dali-cpu';
        return { ...one, available, reason: available ? null : reason };
      });
      source.loaders = [{ ...first!, backends, status: `${refused}; torchvision goes on` }];
    });
    expect(status()).toBe(text);
  });
});

describe('what a swap does and does not bring', () => {
  const note = 'DALI decodes and does RandomResizedCrop; RandAugment runs in the loader’s workers.';

  it('says what an engine leaves to others, at its radio', () => {
    mount(source => {
      const [first] = source.loaders;
      const backends = first!.backends.map(one =>
        one.name === 'dali-cpu' ? { ...one, note } : one
      );
      source.loaders = [{ ...first!, backends }];
    });
    const { title } = radio('dali-cpu');
    expect(title).toBe(note);
    const described = document.getElementById(radio('dali-cpu').getAttribute('aria-describedby')!);
    expect(described!.textContent).toBe(`dali-cpu: ${note}`);
    expect(described!.hidden).toBe(false);
    expect(radio('dali-cpu').getAttribute('aria-disabled')).toBeNull();
    expect(radio('torchvision').title).toBe('');
  });

  it('says what is so of several engines once', () => {
    mount(source => {
      const [first] = source.loaders;
      const backends = first!.backends.map(one =>
        one.name === 'torchvision' ? one : { ...one, available: true, note }
      );
      source.loaders = [{ ...first!, backends }];
    });
    const lines = [...document.querySelectorAll<HTMLElement>('.km-reason')];
    const shown = lines.filter(el => !el.hidden).map(el => el.textContent);
    expect(shown.filter(text => text.includes(note))).toEqual([
      `dali-cpu, dali-gpu, synthetic, ray: ${note}`
    ]);
    const described = radio('ray').getAttribute('aria-describedby')!;
    expect(document.getElementById(described)!.textContent).toContain(note);
  });

  it('shows of one engine what it leaves to others while that is pointed at, until it is chosen', () => {
    const other = 'The order stays.';
    mount(source => {
      const [first] = source.loaders;
      const backends = first!.backends.map(one => {
        const said = { 'dali-cpu': note, synthetic: other, ray: other }[one.name];
        return said === undefined ? one : { ...one, available: true, note: said };
      });
      source.loaders = [{ ...first!, backends }];
    });
    const box = document.querySelector('.km-reasons')!;
    const shown = (): string[] =>
      box.classList.contains('km-requested')
        ? [...box.querySelectorAll<HTMLElement>('.km-reason')]
            .filter(el => !el.hidden)
            .map(el => el.textContent)
        : [];
    const enter = (name: string): boolean => radio(name).dispatchEvent(new Event('pointerenter'));
    expect(shown()).toEqual([]);
    enter('dali-cpu');
    expect(shown()).toEqual([`dali-cpu: ${note}`]);
    enter('ray');
    expect(shown()).toEqual([`synthetic, ray: ${other}`]);
    enter('torchvision');
    expect(shown()).toEqual([]);
    enter('dali-cpu');
    radio('dali-cpu').click();
    expect(shown()).toEqual([]);
    // By keyboard.
    radio('torchvision').focus();
    key('ArrowRight');
    expect(shown()).toEqual([`dali-cpu: ${note}`]);
    key('Escape');
    expect(shown()).toEqual([]);
    // Who clicks on one that cannot be chosen wants to know why.
    radio('dali-gpu').click();
    expect(shown()).toEqual([radio('dali-gpu').title].map(text => `dali-gpu: ${text}`));
  });

  it('offers the way back where the switch lost speed', async () => {
    mount(one => {
      one.strip = {
        loader: one.loaders[0]!.id,
        source: 'torchvision',
        target: 'dali-cpu',
        text: 'slower',
        rows: [],
        back: 'torchvision'
      };
    });
    const back = press('Back to torchvision');
    expect(back.hidden).toBe(false);
    back.click();
    await settle();
    expect(source.asked.at(-1)!.slice(0, 2)).toEqual([source.strip!.loader, 'torchvision']);
    source.strip = { ...source.strip!, back: null };
    controls.update();
    expect(back.hidden).toBe(true);
  });
});

describe('the loader’s radios', () => {
  it('have the names that assistive technology reads', () => {
    const group = all('radiogroup')[0]!;
    const label = document.getElementById(group.getAttribute('aria-labelledby')!);
    expect(label?.textContent).toBe('Loader');
    expect(all('radio').map(el => el.getAttribute('aria-label'))).toEqual([
      'torchvision',
      'dali-cpu',
      'dali-gpu',
      'synthetic',
      'ray'
    ]);
    expect(checked()).toEqual(['torchvision']);
    const gpu = radio('dali-gpu');
    expect(gpu.getAttribute('aria-disabled')).toBe('true');
    const why = document.getElementById(gpu.getAttribute('aria-describedby')!);
    expect(why?.textContent).toBe('dali-gpu: NVML Shared Library Not Found');
    expect(why?.hidden).toBe(false);
  });

  it('name the loader where there are several, and show the name as text', () => {
    mount(one => (one.loaders = [state, { ...state, id: 'v', name: 'val' }]));
    const labels = all('radiogroup').map(
      group => document.getElementById(group.getAttribute('aria-labelledby')!)?.textContent
    );
    expect(labels).toEqual(['Loader train <b>', 'Loader val']);
    expect(document.querySelector('b')).toBeNull();
    expect(status()).toContain('train <b>: switching to dali-cpu…');
  });

  it('show a click at once, and its answer', async () => {
    let answer: (state: LoaderState) => void = () => undefined;
    source.answer = () => new Promise(resolve => (answer = resolve));
    radio('dali-cpu').click();
    expect(checked()).toEqual(['dali-cpu']);
    expect(radio('dali-cpu').dataset.acknowledged).toBeUndefined();
    expect(source.asked).toEqual([['loader-1', 'dali-cpu', false]]);
    answer({ ...state, wanted: 'dali-cpu' });
    await settle();
    expect(Number(radio('dali-cpu').dataset.acknowledged)).toBeGreaterThanOrEqual(0);
    // A frame that left the kernel before the click did.
    controls.update();
    expect(checked()).toEqual(['dali-cpu']);
    source.loaders = [{ ...state, backend: 'dali-cpu', wanted: null }];
    controls.update();
    await new Promise(resolve => setTimeout(resolve, 350));
    expect(checked()).toEqual(['dali-cpu']);
  });

  it('go back when the kernel refuses, and say why', async () => {
    source.answer = () => Promise.reject(new Error('The <i>pipeline</i> is broken.'));
    radio('dali-cpu').click();
    await settle();
    expect(checked()).toEqual(['torchvision']);
    expect(radio('dali-cpu').dataset.acknowledged).toBeUndefined();
    const alert = all('alert')[0]!;
    expect(alert.hidden).toBe(false);
    expect(alert.textContent).toContain('dali-cpu was not taken: The <i>pipeline</i> is broken.');
    press('Dismiss').click();
    expect(alert.hidden).toBe(true);
  });

  it('do nothing when disabled', () => {
    radio('dali-gpu').click();
    expect(source.asked).toEqual([]);
  });

  it('work by keyboard: arrows move, Space and Enter choose', () => {
    expect(all('radio').map(el => el.tabIndex)).toEqual([0, -1, -1, -1, -1]);
    radio('torchvision').focus();
    key('ArrowRight');
    expect(document.activeElement).toBe(radio('dali-cpu'));
    expect(source.asked).toEqual([]);
    key('ArrowDown');
    key('Enter');
    expect(document.activeElement).toBe(radio('dali-gpu'));
    expect(source.asked).toEqual([]);
    key('ArrowUp');
    expect(key(' ')).toBe(false);
    expect(source.asked).toEqual([['loader-1', 'dali-cpu', false]]);
    key('Home');
    key('ArrowLeft');
    expect(document.activeElement).toBe(radio('ray'));
    expect(key('a')).toBe(true);
  });

  it('are updated in place', () => {
    const [before] = all('radio');
    source.loaders = [{ ...state, samples: 1024 }];
    controls.update();
    expect(all('radio')[0]).toBe(before);
    source.loaders = [];
    controls.update();
    expect(all('radiogroup')).toEqual([]);
  });

  it('are gone when the loader is, and its counter stays', () => {
    source.loaders = [{ ...state, ended: true }];
    controls.update();
    expect(all('radiogroup')[0]!.hidden).toBe(true);
    expect(document.querySelector('.km-label')?.textContent).toBe('Loader (ended)');
    expect(document.querySelector('.km-counter')?.textContent).toContain('991 of 2,048');
  });
});

describe('status and buttons', () => {
  const enabled = (): string[] =>
    ['Start', 'Resume', 'Stop', 'Export'].filter(name => {
      const button = press(name) as HTMLButtonElement | undefined;
      return button !== undefined && !button.disabled;
    });

  it.each([
    ['running', words.running(0.1), false, 'torchvision', ['Stop', 'Export']],
    ['paused', words.paused(), false, 'Paused', ['Resume', 'Stop', 'Export']],
    ['stopped', words.stopped('s'), true, 'Stopped', ['Start', 'Export']],
    ['not loaded', words.notLoaded(), false, 'not loaded', []],
    ['not loaded, but can be', words.notLoaded(), true, 'not loaded', ['Start']],
    ['dead', words.dead(), false, 'The kernel is dead', []]
  ])('%s', (_, connection, canStart, text, buttons) => {
    mount(one => {
      one.connection = connection;
      one.canStart = canStart;
    });
    expect(status()).toContain(text);
    expect(enabled()).toEqual(buttons);
  });

  it('Start and Stop share one place, and the keyboard stays at it', () => {
    expect(press('Start').hidden).toBe(true);
    press('Stop').focus();
    source.connection = words.stopped('s');
    source.canStart = true;
    controls.update();
    expect([press('Start').hidden, press('Stop').hidden]).toEqual([false, true]);
    expect(document.activeElement).toBe(press('Start'));
  });

  it('are behind Tools where there is little room, as a person left them, while something is measured', () => {
    const tools = (): HTMLButtonElement => press('Tools');
    const open = (): boolean => controls.el.classList.contains('km-has-tools');
    expect([tools().hidden, open()]).toEqual([false, false]);
    expect(
      document.getElementById(tools().getAttribute('aria-controls')!)!.contains(press('Export'))
    ).toBe(true);
    tools().click();
    expect([tools().getAttribute('aria-expanded'), open()]).toEqual(['true', true]);
    mount();
    expect([tools().getAttribute('aria-expanded'), open()]).toEqual(['true', true]);
    tools().click();
    mount(one => (one.connection = words.stopped('s')));
    // Then there is nothing else to look at.
    expect([tools().hidden, open()]).toEqual([true, true]);
  });

  it('open when the charts are to be chosen, for this once', () => {
    controls.choose();
    expect(press('Tools').getAttribute('aria-expanded')).toBe('true');
    mount();
    expect(press('Tools').getAttribute('aria-expanded')).toBe('false');
  });

  it('Diagnose and Profile are among the tools of one loader, and with each of several', () => {
    const place = (): Element => press('Diagnose').closest('.km-toolbar, .km-loader')!;
    source.analysis = {
      verdict: null,
      verdicts: new Map(),
      offers: [],
      diagnosing: null,
      profiling: null,
      ranks: [],
      notices: [],
      main: null
    };
    controls.update();
    expect(place().className).toBe('km-toolbar');
    source.loaders = [state, { ...state, id: 'loader-2', name: 'val' }];
    controls.update();
    expect(place().className).toBe('km-loader');
    source.loaders = [state];
    controls.update();
    expect(place().className).toBe('km-toolbar');
    expect(
      [...document.querySelectorAll('button')].filter(el => el.textContent === 'Diagnose').length
    ).toBe(1);
  });

  it('say what to copy', () => {
    mount(one => (one.connection = words.notLoaded()));
    const codes = [...document.querySelectorAll('.km-copy')].filter(
      el => el.closest('[hidden]') === null
    );
    expect(codes.map(el => el.querySelector('code')?.textContent)).toEqual([
      '%load_ext kernel_monitor'
    ]);
  });

  it('say without a loader what runs, and how to wrap one only where nothing is about to', () => {
    vi.useFakeTimers();
    try {
      mount(one => {
        one.loaders = [];
        one.busy = true;
      });
      const part = (name: string): HTMLElement => document.querySelector(`.km-invitation${name}`)!;
      const after = (ms: number): boolean[] => {
        vi.advanceTimersByTime(ms);
        controls.update();
        return ['', ' > span', ' .km-advice'].map(name => !part(name).hidden);
      };
      expect(status()).toBe('Measuring every 0.1 s.');
      expect(after(0)).toEqual([true, true, false]);
      expect(part(' > span').textContent).toBe(
        'A cell is running; no DataLoader has been iterated yet.'
      );
      // A cell that runs for long may iterate one that is not wrapped.
      expect(after(61_000)).toEqual([true, true, true]);
      // Between two cells.
      source.busy = false;
      expect(after(0)[0]).toBe(false);
      expect(after(6000)).toEqual([true, false, true]);
      expect(part(' code').textContent).toBe(
        'from kernel_monitor import watch_loader\nbatches = watch_loader(batches)'
      );
      source.busy = true;
      expect(after(0)).toEqual([true, true, false]);
      source.loaders = [state];
      expect(after(0)[0]).toBe(false);
    } finally {
      vi.useRealTimers();
    }
  });

  it('work once at a time and show how they failed', async () => {
    let fail: (error: Error) => void = () => undefined;
    source.exportPage.mockImplementation(() => new Promise((_, reject) => (fail = reject)));
    const button = press('Export');
    button.click();
    button.click();
    expect(source.exportPage).toHaveBeenCalledTimes(1);
    expect(button.getAttribute('aria-busy')).toBe('true');
    fail(new Error('Nothing was measured yet.'));
    await settle();
    expect(button.hasAttribute('aria-busy')).toBe(false);
    expect(all('alert')[0]!.textContent).toContain('Export failed: Nothing was measured yet.');
  });

  it('hand over the exported file', async () => {
    const clicked: string[] = [];
    URL.createObjectURL = () => 'blob:1';
    URL.revokeObjectURL = () => undefined;
    vi.spyOn(HTMLAnchorElement.prototype, 'click').mockImplementation(function (
      this: HTMLAnchorElement
    ) {
      clicked.push(`${this.download} ${this.href}`);
    });
    press('Export').click();
    await settle();
    expect(clicked).toEqual(['run.html blob:1']);
  });

  it('choose the window', () => {
    press('5 min').click();
    expect(windows).toEqual([300]);
    expect(press('5 min').getAttribute('aria-pressed')).toBe('true');
    expect(press('1 min').getAttribute('aria-pressed')).toBe('false');
  });
});

describe('the strip', () => {
  it('says what changed, with a table behind it', () => {
    const el = (): HTMLElement => document.querySelector('.km-strip')!;
    expect(el().hidden).toBe(true);
    source.strip = strip;
    controls.update();
    expect(el().hidden).toBe(false);
    expect(el().querySelector('.km-strip-text')?.textContent).toBe(strip!.text);
    expect(el().querySelector('.km-strip-heading')?.textContent).toBe('torchvision → dali-cpu');
    const cells = [...el().querySelectorAll('tbody td')].map(cell => cell.textContent);
    expect(cells).toEqual(['CPU p95', '100', '61', '%']);
    // The engine in use tells which switch is meant; after another one the heading is needed.
    source.loaders = [{ ...state, backend: strip!.target }];
    controls.update();
    expect(el().classList.contains('km-past')).toBe(false);
    source.loaders = [{ ...state, backend: strip!.source }];
    controls.update();
    expect(el().classList.contains('km-past')).toBe(true);
    source.loaders = [state, { ...state, id: 'v', name: 'val' }];
    source.strip = { ...strip!, text: 'train <b>: torchvision → dali-cpu: measuring…', rows: [] };
    controls.update();
    expect(el().querySelector('summary')!.textContent).toBe(
      'train <b>:torchvision → dali-cpu: measuring…'
    );
    source.strip = { ...strip!, text: 'measuring…', rows: [] };
    controls.update();
    expect(el().querySelector('.km-strip-text')?.textContent).toBe('measuring…');
    expect(el().querySelectorAll('tbody tr')).toHaveLength(0);
  });
});

describe('several loaders', () => {
  const [first] = new FakeSource().loaders;
  const own = first!;
  const other = { ...own, id: 'v', name: 'val', backend: 'dali-cpu', status: 'val rests' };
  const fold = (): HTMLButtonElement[] => [
    ...document.querySelectorAll<HTMLButtonElement>('.km-fold:not([hidden])')
  ];
  const groups = (): string[] =>
    all('radiogroup')
      .filter(group => group.closest('[hidden]') === null)
      .map(el => document.getElementById(el.getAttribute('aria-labelledby')!)!.textContent);
  const two = (change: Partial<LoaderState> = {}): void =>
    mount(one => {
      one.loaders = [{ ...other, ...change }, own];
      one.analysis = training(own.id);
    });

  it('are one large one, whose loop trains, and a line for each other', () => {
    two();
    expect(groups()).toEqual(['Loader train <b>']);
    expect(fold().map(el => el.textContent)).toEqual(['val · dali-cpu']);
    expect(fold()[0]!.title).toBe('val: val rests');
    expect(status()).not.toContain('val');
    // The large one stands first.
    expect(document.querySelector('.km-loader .km-fold')!.hasAttribute('hidden')).toBe(true);
    mount();
    expect(fold()).toEqual([]);
  });

  it('are opened by a click, and stay so', () => {
    two();
    const [line] = fold();
    expect(line!.getAttribute('aria-expanded')).toBe('false');
    const body = document.getElementById(line!.getAttribute('aria-controls')!)!;
    line!.click();
    controls.update();
    expect([line!.getAttribute('aria-expanded'), body.hidden]).toEqual(['true', false]);
    expect(groups()).toHaveLength(2);
    expect(status()).toContain('val: val rests');
    line!.click();
    controls.update();
    expect([line!.getAttribute('aria-expanded'), body.hidden]).toEqual(['false', true]);
  });

  it('are shown where something happens in them', () => {
    for (const change of [{ wanted: 'torchvision' }, { lost: 1 }]) {
      two(change);
      expect(groups()).toHaveLength(2);
    }
  });

  it('are not folded or moved under the keyboard', () => {
    two();
    fold()[0]!.click();
    radio('torchvision').focus();
    const before = [...document.querySelectorAll('.km-loader')];
    for (const id of [other.id, own.id]) {
      source.analysis = training(id);
      controls.update();
    }
    expect([...document.querySelectorAll('.km-loader')]).toEqual(before);
    expect(document.activeElement!.closest('[hidden]')).toBeNull();
  });

  it('count one that has ended last', () => {
    mount(one => {
      one.loaders = [{ ...own, ended: true }, other];
      one.analysis = training(own.id);
    });
    expect(groups()).toEqual(['Loader val']);
    expect(fold().map(el => el.textContent)).toEqual([`${own.name} · ended`]);
  });
});
