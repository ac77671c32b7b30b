/** What a kernel owns, as its page last heard of it: session, schema, loaders, strip, events, settings, recording. */

import { Emitter } from './emitter.js';
import type { ChartChoice, Recording, Settings } from './settings.js';
import type { LoaderState, MonitorEvent, Schema, Setup, Strip } from './wire.js';

export class Mirror {
  session: string | null = null;
  schema: Schema | null = null;
  loaders: readonly LoaderState[] = [];
  strip: Strip | null = null;
  events: readonly MonitorEvent[] = [];
  settings: Settings | null = null;
  charts: readonly ChartChoice[] = [];
  recording: Recording | null = null;
  readonly changed = new Emitter<void>();
  private readonly eventIds = new Set<number>();

  /** Another schema; with another session, what was heard of the one before is forgotten. */
  begin(session: string | null, schema: Schema): void {
    if (session !== this.session || this.schema === null) {
      this.events = [];
      this.eventIds.clear();
    }
    this.session = session;
    this.schema = schema;
  }

  /** Shown with the next `take`. */
  setUp({ settings, charts, recording }: Setup): void {
    this.settings = settings;
    this.charts = charts;
    this.recording = recording;
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

  takeSettings(settings: Settings | null): void {
    this.settings = settings ?? this.settings;
    this.changed.emit();
  }
}
