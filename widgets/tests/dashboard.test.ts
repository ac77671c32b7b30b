import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import type { BokehApi, BokehDocument } from '../src/charts/bokeh_api.js';
import * as words from '../src/stream/connection.js';
import { mountDashboard } from '../src/page/dashboard.js';
import type { DashboardElement } from '../src/page/handle.js';
import widget from '../src/widget.js';
import { fakeDocument, FakeModel, FakeMonitor, makeRows, makeSchema, range } from './fakes.js';
import { FakeSource, training } from './fakesource.js';

/** The place of an IntersectionObserver: what is on the screen is what a test says. */
let onScreen: (visible: boolean) => void = () => undefined;
let observers = 0;
class FakeObserver {
  constructor(callback: (entries: { isIntersecting: boolean }[]) => void) {
    observers += 1;
    onScreen = visible => callback([{ isIntersecting: visible }]);
  }
  observe = (): void => undefined;
  disconnect = (): void => void (observers -= 1);
}

let embedded: { item: unknown; target: HTMLElement; document: BokehDocument }[] = [];
let cleared: BokehDocument[] = [];

function makeDocument(): BokehDocument {
  const document: BokehDocument = {
    ...fakeDocument([
      new FakeModel('ColumnDataSource', 'cpu-tiles', [
        { kind: 'tiles', rows: ['cpu/0/busy', 'cpu/1/busy'], slots: 10 }
      ]),
      new FakeModel('Range1d', 'time'),
      new FakeModel('Title', null, [], { text: 'CPU' })
    ]),
    clear: () => void cleared.push(document)
  };
  return document;
}

class FakeImage extends Uint8Array {
  constructor(
    init: Uint8Array,
    readonly shape: [number, number]
  ) {
    super(init);
  }
}

const bokeh: BokehApi = {
  version: '3.9.2',
  documents: [],
  embed: {
    embed_item: (item, target) => {
      expect(target.isConnected).toBe(true);
      const document = makeDocument();
      embedded.push({ item, target, document });
      return Promise.resolve({ roots: [{ model: { document } }] });
    }
  },
  require: () => ({ Uint8NDArray: FakeImage })
};

let el: DashboardElement;
let source: FakeSource;
const settle = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 20));
const drawn = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 300));
const note = (): HTMLElement => el.querySelector<HTMLElement>('.km-note')!;

beforeEach(() => {
  embedded = [];
  cleared = [];
  observers = 0;
  vi.stubGlobal('IntersectionObserver', FakeObserver);
  vi.stubGlobal('matchMedia', () => ({
    matches: false,
    addEventListener: () => undefined,
    removeEventListener: () => undefined
  }));
  const page = globalThis as unknown as Record<symbol, unknown>;
  page[Symbol.for('kernel_monitor.bokeh')] = new Map([['3.9.2', Promise.resolve(bokeh)]]);
  el = document.createElement('div');
  document.body.replaceChildren(el);
  source = new FakeSource();
  source.document.mockImplementation(() =>
    Promise.resolve({ schema: source.schema!.version, bokeh: '3.9.2', item: { n: 1 } })
  );
});
afterEach(() => vi.unstubAllGlobals());

function open(version: number, rows: number): void {
  source.schema = { ...makeSchema(), version };
  source.opened.emit(source.schema);
  source.arrived.emit(makeRows(source.schema, range(1, rows)));
}

describe('a dashboard', () => {
  it('shows the history and what comes while its charts are built', async () => {
    mountDashboard(el, source);
    onScreen(true);
    open(3, 10);
    source.arrived.emit(makeRows(source.schema!, [11]));
    await settle();
    expect(el.classList.contains('km-dashboard')).toBe(true);
    expect(embedded).toHaveLength(1);
    expect(el.monitor?.feed?.newest?.seq).toBe(11);
    source.arrived.emit(makeRows(source.schema!, [12]));
    await drawn();
    expect(el.monitor?.feed?.drawn?.seq).toBe(12);
    expect(el.monitor?.newestTileColumn('cpu')).toEqual([12, 13]);
    expect(el.monitor?.sourceData('cpu-tiles')?.image).toHaveLength(61);
    expect(el.monitor?.sourceData('none')).toBeNull();
    expect(note().hidden).toBe(true);
  });

  it('says which GPUs the kernel holds while no cell runs, until one does', () => {
    mountDashboard(el, source);
    const said = el.querySelector<HTMLElement>('[aria-label="Notices"]')!;
    expect(said.hidden).toBe(true);
    source.analysis = { ...training('loader-1'), notices: ['GPU 0 …', 'GPU 1 …'] };
    source.changed.emit();
    expect([said.hidden, said.role, said.textContent]).toEqual([
      false,
      'status',
      'GPU 0 …\nGPU 1 …'
    ]);
    source.analysis = training('loader-1');
    source.changed.emit();
    expect(said.hidden).toBe(true);
  });

  it('tells its source when it is seen, and draws only then', async () => {
    const { dispose } = mountDashboard(el, source);
    expect(source.setVisible).not.toHaveBeenCalled();
    onScreen(true);
    expect(source.setVisible).toHaveBeenLastCalledWith(true);
    open(3, 5);
    await drawn();
    const draws = el.monitor!.feed!.draws;
    onScreen(false);
    expect(source.setVisible).toHaveBeenLastCalledWith(false);
    const count = draws.count;
    source.arrived.emit(makeRows(source.schema!, [6]));
    await drawn();
    expect(draws.count).toBe(count);
    onScreen(true);
    await vi.waitFor(() => expect(draws.count).toBe(count + 1), 5000);
    dispatchEvent(new Event('pagehide'));
    expect(source.setVisible).toHaveBeenLastCalledWith(false);
    dispatchEvent(new Event('pageshow'));
    expect(source.setVisible).toHaveBeenLastCalledWith(true);
    dispose();
    expect(source.setVisible).toHaveBeenLastCalledWith(false);
  });

  it('keeps the old charts, and goes on with them, until those of another schema stand', async () => {
    mountDashboard(el, source);
    onScreen(true);
    open(3, 5);
    await settle();
    let answer: () => void = () => undefined;
    source.document.mockImplementation(
      () =>
        new Promise(resolve => {
          answer = () => resolve({ schema: 4, bokeh: '3.9.2', item: { n: 2 } });
        })
    );
    open(4, 6);
    await settle();
    expect(el.querySelectorAll('.km-pane')).toHaveLength(1);
    expect(cleared).toEqual([]);
    source.arrived.emit(makeRows(source.schema!, [7]));
    expect(el.monitor?.feed?.newest?.seq).toBe(7);
    answer();
    await settle();
    expect(embedded).toHaveLength(2);
    expect(cleared).toEqual([embedded[0]!.document]);
    expect([...el.querySelectorAll('.km-pane')]).toEqual([embedded[1]!.target]);
    expect(el.monitor?.feed?.newest?.seq).toBe(7);
  });

  it('does not show charts that a newer schema overtook', async () => {
    mountDashboard(el, source);
    onScreen(true);
    open(3, 5);
    open(4, 5);
    await settle();
    expect(embedded).toHaveLength(1);
    expect(source.refresh).not.toHaveBeenCalled();
    source.document.mockResolvedValue({ schema: 6, bokeh: '3.9.2', item: {} });
    open(5, 5);
    await settle();
    expect(embedded).toHaveLength(1);
    expect(source.refresh).toHaveBeenCalled();
  });

  it('says why there are no charts, and tries again with the whole history', async () => {
    mountDashboard(el, source);
    onScreen(true);
    source.document.mockRejectedValueOnce(new Error('bokeh is not installed'));
    open(3, 5);
    await settle();
    expect(note().textContent).toContain('bokeh is not installed');
    source.arrived.emit(makeRows(source.schema!, [6]));
    const rows = makeRows(source.schema!, range(1, 6));
    source.history.mockResolvedValue({ rows, events: [] });
    note().querySelector('button')!.click();
    await settle();
    expect(note().hidden).toBe(true);
    expect(el.monitor?.feed?.newest?.seq).toBe(6);
  });

  it('asks for no charts before the sampler has said what it measures', async () => {
    mountDashboard(el, source);
    onScreen(true);
    source.schema = makeSchema([]);
    source.opened.emit(source.schema);
    await settle();
    expect(source.document).not.toHaveBeenCalled();
  });

  it('shows what a click waits for at once, counters with the next drawing', async () => {
    mountDashboard(el, source);
    onScreen(true);
    open(3, 5);
    await drawn();
    const text = (selector: string): string => el.querySelector(selector)!.textContent;
    source.changed.emit();
    source.loaders = [{ ...source.loaders[0]!, samples: 1024 }];
    source.changed.emit();
    expect(text('.km-counter')).not.toContain('1,024');
    source.loaders = [{ ...source.loaders[0]!, status: 'switching to dali-cpu…' }];
    source.changed.emit();
    expect(text('[role=status]')).toBe('switching to dali-cpu…');
    expect(text('.km-counter')).toContain('1,024');
    source.loaders = [{ ...source.loaders[0]!, samples: 1056 }];
    source.changed.emit();
    await new Promise(resolve => setTimeout(resolve, 1050));
    expect(text('.km-counter')).toContain('1,056');
    source.connection = words.dead();
    source.connectionChanged.emit(source.connection);
    expect(el.dataset.state).toBe('dead');
  });

  it('draws nothing while a click of another dashboard waits', async () => {
    mountDashboard(el, source);
    onScreen(true);
    open(3, 5);
    await drawn();
    const { draws } = el.monitor!.feed!;
    const other = document.createElement('div');
    document.body.append(other);
    mountDashboard(other, new FakeSource());
    await drawn();
    const count = draws.count;
    source.arrived.emit(makeRows(source.schema!, [6]));
    other.querySelector<HTMLElement>('[role=radio][aria-label=dali-cpu]')!.click();
    await new Promise(resolve => setTimeout(resolve, 100));
    expect(draws.count).toBe(count);
    await vi.waitFor(() => expect(draws.count).toBe(count + 1), 5000);
  });

  it('opens the choice of charts for its host, and shows what was chosen at once', async () => {
    source.settings = {
      ...{ interval: 0.1, history: 600, charts: ['cpu'], record: true },
      ...{ record_to: null, price: null, currency: '' }
    };
    source.charts = [
      { id: 'cpu', title: 'CPU', available: true, default: true, reason: null },
      {
        id: 'io',
        title: 'Disk and network',
        available: true,
        default: false,
        reason: null
      }
    ];
    const { chooseCharts } = mountDashboard(el, source);
    chooseCharts();
    const boxes = [...el.querySelectorAll<HTMLInputElement>('.km-choice input')];
    expect(document.activeElement).toBe(boxes[0]);
    open(3, 5);
    await settle();
    source.settings = { ...source.settings, charts: ['cpu', 'io'] };
    source.changed.emit();
    expect(boxes.map(box => box.checked)).toEqual([true, true]);
  });

  it('leaves nothing behind', async () => {
    const { dispose } = mountDashboard(el, source, { compact: true });
    onScreen(true);
    open(3, 5);
    await settle();
    dispose();
    expect(cleared).toHaveLength(1);
    expect(el.outerHTML).toBe('<div class=""></div>');
    expect(el.monitor).toBeUndefined();
    expect(observers).toBe(0);
    source.arrived.emit(makeRows(source.schema!, [6]));
    open(4, 5);
    await settle();
    expect(embedded).toHaveLength(1);
  });
});

describe('the widget', () => {
  const sent: { content: { command: string } }[] = [];
  const silent = {
    send: (message: unknown) => void sent.push(message as (typeof sent)[0]),
    on: () => undefined,
    off: () => undefined
  };

  it('asks by its own messages where a front end gives no kernel, and says what that means', async () => {
    const clean = widget.render({ model: silent, el });
    onScreen(true);
    await settle();
    expect(sent.map(({ content }) => content.command)).toEqual(['hello', 'subscribe']);
    const note = el.querySelector('[role=note]')!;
    expect(note.textContent).toContain('while a cell runs clicks cannot reach the kernel');
    expect(note.textContent).toContain('kernel-monitor switch dali-cpu');
    clean();
    expect(el.childNodes).toHaveLength(0);
  });

  it('shows a recorded session where it carries the name of one', async () => {
    const monitor = new FakeMonitor();
    const get = (name: string): unknown => (name === 'recorded' ? 'r1' : undefined);
    const manager = { widget_manager: { kernel: monitor.kernel } };
    const clean = widget.render({ model: { ...silent, ...manager, get }, el });
    onScreen(true);
    await settle();
    expect(monitor.kernel.requests[0]).toMatchObject({
      command: 'subscribe',
      args: { recorded: 'r1' }
    });
    clean();
    const live = widget.render({
      model: { ...silent, ...manager, get: () => null },
      el
    });
    onScreen(true);
    await settle();
    expect(monitor.kernel.requests.at(-1)?.args.recorded).toBeUndefined();
    expect(monitor.kernel.commands()).toContain('hello');
    live();
  });

  it('follows the kernel of its notebook', async () => {
    const [first, second] = [new FakeMonitor(), new FakeMonitor()];
    const slots = new Set<() => void>();
    const session = {
      session: { kernel: first.kernel as FakeMonitor['kernel'] | null },
      kernelChanged: {
        connect: (slot: never) => slots.add(slot).has(slot),
        disconnect: (slot: never) => slots.delete(slot)
      }
    };
    const model = {
      ...silent,
      widget_manager: { kernel: first.kernel, context: { sessionContext: session } }
    };
    const clean = widget.render({ model, el });
    onScreen(true);
    await settle();
    expect(first.kernel.commands()).toContain('subscribe');
    session.session.kernel = second.kernel;
    slots.forEach(slot => slot());
    onScreen(true);
    await settle();
    expect(first.kernel.commands().at(-1)).toBe('unsubscribe');
    expect(first.kernel.iopubMessage.slots.size).toBe(0);
    expect(second.kernel.commands()).toContain('subscribe');
    session.session.kernel = null;
    slots.forEach(slot => slot());
    expect(el.textContent).toContain('no kernel');
    clean();
    expect(slots.size).toBe(0);
    expect(second.kernel.commands().at(-1)).toBe('unsubscribe');
  });
});
