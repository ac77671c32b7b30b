/**
 * The kernel's state as the page last received it: session, schema, loaders, strip, events, settings, recording,
 * analysis.
 */

import type { AnalysisState, Findings } from '../analysis/analysis.js';
import { Emitter } from './emitter.js';
import type {
  ChartChoice,
  LoaderState,
  MonitorEvent,
  Recording,
  Schema,
  Settings,
  Strip,
  Subscription
} from './page_messages.js';

export class Mirror {
  session: string | null = null;
  schema: Schema | null = null;
  loaders: readonly LoaderState[] = [];
  strip: Strip | null = null;
  events: readonly MonitorEvent[] = [];
  settings: Settings | null = null;
  charts: readonly ChartChoice[] = [];
  recording: Recording | null = null;
  analysis: AnalysisState | null = null;
  readonly changed = new Emitter<void>();
  private readonly eventIds = new Set<number>();

  /** Another schema; with another session, the state of the previous session is dropped. */
  begin(session: string | null, schema: Schema): void {
    if (session !== this.session || this.schema === null) {
      this.events = [];
      this.eventIds.clear();
      this.analysis = null;
    }
    this.session = session;
    this.schema = schema;
  }

  takeSubscription(subscription: Subscription): void {
    const { settings, charts, recording, loaders, strip, events } = subscription;
    this.settings = settings;
    this.charts = charts;
    this.mergeAnalysis(subscription);
    this.take(loaders, strip, events, recording);
  }

  /** A change of the analysis, where a missing field has not changed; shown with the next `take`. */
  mergeAnalysis(changes: Findings): void {
    const before = this.analysis ?? NOTHING;
    const { verdict = before.verdict, offers = before.offers } = changes;
    const { diagnosing = before.diagnosing, profiling = before.profiling } = changes;
    const { ranks = before.ranks, main = before.main } = changes;
    const { notices = before.notices } = changes;
    // Of a loop that has ended, the last one stays.
    const verdicts = verdict
      ? new Map(before.verdicts).set(verdict.loader, verdict)
      : before.verdicts;
    const tasks = { diagnosing, profiling };
    this.analysis = { verdict, verdicts, offers, ranks, notices, main, ...tasks };
  }

  take(
    loaders: readonly LoaderState[],
    strip: Strip | null,
    events: readonly MonitorEvent[],
    recording = this.recording
  ): void {
    this.loaders = loaders;
    this.strip = strip;
    this.recording = recording;
    const fresh = events.filter(event => !this.eventIds.has(event.id));
    if (fresh.length > 0) {
      fresh.forEach(event => this.eventIds.add(event.id));
      this.events = [...this.events, ...fresh].sort((a, b) => a.id - b.id);
    }
    this.changed.emit();
  }

  takeLoader(state: LoaderState): LoaderState {
    this.take(
      this.loaders.map(old => (old.id === state.id ? state : old)),
      this.strip,
      []
    );
    return state;
  }

  takeAnalysis(changes: Findings): void {
    this.mergeAnalysis(changes);
    this.changed.emit();
  }

  takeSettings(settings: Settings): void {
    this.settings = settings;
    this.changed.emit();
  }
}

const NOTHING: AnalysisState = {
  verdict: null,
  verdicts: new Map(),
  offers: [],
  diagnosing: null,
  profiling: null,
  ranks: [],
  notices: [],
  main: null
};
