/**
 * What a kernel owns, as its page last heard of it: session, schema, loaders, strip, events, settings, recording,
 * analysis.
 */

import type { AnalysisNews, AnalysisState } from './analysis.js';
import { Emitter } from './emitter.js';
import type { ChartChoice, Recording, Settings } from './settings.js';
import type { LoaderState, MonitorEvent, Schema, Strip, Subscription } from './wire.js';

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

  /** Another schema; with another session, what was heard of the one before is forgotten. */
  begin(session: string | null, schema: Schema): void {
    if (session !== this.session || this.schema === null) {
      this.events = [];
      this.eventIds.clear();
      this.analysis = null;
    }
    this.session = session;
    this.schema = schema;
  }

  /** Shown with the next `take`. */
  setUp({ settings, charts, recording, analysis }: Subscription): void {
    this.settings = settings;
    this.charts = charts;
    this.recording = recording;
    this.hear(analysis);
  }

  /** What an analysis newly says; shown with the next `take`. */
  hear(news: AnalysisNews | null): void {
    if (news === null) {
      return;
    }
    const { verdicts, ...before } = this.analysis ?? NOTHING;
    const { verdict } = news;
    this.analysis = {
      ...before,
      ...news,
      // A loop that has ended has none any more: what was said of it last still stands.
      verdicts: verdict ? new Map(verdicts).set(verdict.loader, verdict) : verdicts
    };
  }

  take(
    loaders: readonly LoaderState[],
    strip: Strip | null,
    events: readonly MonitorEvent[],
    recording: Recording | null = null
  ): void {
    this.loaders = loaders;
    this.strip = strip;
    this.recording = recording ?? this.recording;
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

  takeAnalysis(news: AnalysisNews | null): void {
    this.hear(news);
    this.changed.emit();
  }

  takeSettings(settings: Settings | null): void {
    this.settings = settings ?? this.settings;
    this.changed.emit();
  }
}

const NOTHING: AnalysisState = { verdicts: new Map(), diagnosing: null, profiling: null };
