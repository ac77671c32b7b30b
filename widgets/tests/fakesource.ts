/** A source that does as a test tells it. */

import { vi } from 'vitest';

import type { StreamStats } from '../src/stream/accounts.js';
import type { AnalysisState } from '../src/analysis/analysis.js';
import type { ChartDocument } from '../src/stream/commands.js';
import * as words from '../src/stream/connection.js';
import { Emitter } from '../src/stream/emitter.js';
import type { Recorded } from '../src/stream/sessions.js';
import type {
  Changes,
  ChartChoice,
  History,
  Knobs,
  LoaderState,
  MonitorEvent,
  Recording,
  Rows,
  Schema,
  Settings
} from '../src/stream/page_messages.js';
import type { MonitorSource } from '../src/stream/source.js';
import { decode } from '../src/stream/message_check.js';
import { golden } from './fakes.js';

const state = decode('SubscribeReply', golden('reply-subscribe').content).loaders[0]!;

/** What the kernel says while the loop of this loader is the one that trains. */
export function training(loader: string): AnalysisState {
  const { content } = golden('analysis');
  const { verdict } = decode('Frame', { ...golden('frame').content, ...content });
  return {
    verdict: { ...verdict!, loader },
    verdicts: new Map([[loader, { ...verdict!, loader }]]),
    offers: [],
    diagnosing: null,
    profiling: null,
    ranks: [],
    notices: [],
    main: loader
  };
}

export class FakeSource implements MonitorSource {
  connection: words.Connection = words.running(0.1);
  session: string | null = 's';
  schema: Schema | null = null;
  loaders: readonly LoaderState[] = [{ ...state, wanted: null, status: 'torchvision' }];
  strip: MonitorSource['strip'] = null;
  events: readonly MonitorEvent[] = [];
  settings: Settings | null = null;
  charts: readonly ChartChoice[] = [];
  recording: Recording | null = null;
  recorded: Recorded | null = null;
  analysis: AnalysisState | null = null;
  stats = {} as StreamStats;
  canStart = false;
  busy = false;
  readonly connectionChanged = new Emitter<words.Connection>();
  readonly opened = new Emitter<Schema>();
  readonly arrived = new Emitter<Rows>();
  readonly changed = new Emitter<void>();
  resetStats = vi.fn();
  setVisible = vi.fn();
  start = vi.fn(() => Promise.resolve());
  stop = vi.fn(() => Promise.resolve());
  resume = vi.fn(() => Promise.resolve());
  refresh = vi.fn();
  history = vi.fn((): Promise<History> => Promise.reject(new Error('unused')));
  document = vi.fn((): Promise<ChartDocument> => Promise.reject(new Error('unused')));
  bokehjs = vi.fn((): Promise<{ version: string; text: string }> =>
    Promise.reject(new Error('unused'))
  );
  exportPage = vi.fn(() => Promise.resolve({ filename: 'run.html', html: '<p>' }));
  reload = vi.fn(() => Promise.resolve());
  dispose = vi.fn();
  configure = vi.fn((changes: Changes): Promise<void> => {
    const { record = this.settings!.record, price, ...others } = changes;
    const cost = typeof price === 'number' ? { price } : {};
    this.settings = { ...this.settings!, ...others, ...cost, record: record !== false };
    return Promise.resolve();
  });
  decline = vi.fn<MonitorSource['decline']>(() => Promise.resolve());
  diagnose = vi.fn<MonitorSource['diagnose']>(() => Promise.resolve());
  tune = vi.fn<MonitorSource['tune']>(() => Promise.resolve());
  code = vi.fn<MonitorSource['code']>(() =>
    Promise.resolve({ status: 'ok', filename: 'dali_loader.py', code: 'import torch\n' })
  );
  undoTune = vi.fn<MonitorSource['undoTune']>(() => Promise.resolve());
  cancelDiagnosis = vi.fn<MonitorSource['cancelDiagnosis']>(() => Promise.resolve());
  profile = vi.fn<MonitorSource['profile']>(() => Promise.resolve());
  mark = vi.fn<MonitorSource['mark']>(() => Promise.resolve());
  readonly asked: [string, string, boolean][] = [];
  answer: (backend: string) => Promise<LoaderState> = backend =>
    Promise.resolve({ ...state, wanted: backend });

  set = vi.fn((_: string, knobs: Partial<Knobs>): Promise<LoaderState> =>
    Promise.resolve({ ...state, knobs: { ...state.knobs, ...knobs } })
  );

  switchTo(loader: string, backend: string, confirmed = false): Promise<LoaderState> {
    this.asked.push([loader, backend, confirmed]);
    return this.answer(backend);
  }
}
