/** The results of *Diagnose* and *Profile* in a session, read from its events. */

import type { AnalysisState } from './analysis.js';
import type { Found } from './insight.js';
import { decode } from '../stream/message_check.js';
import type { MonitorEvent } from '../stream/page_messages.js';

type ByKind = { [K in keyof Found]: Found[K][number][] };

export class Results {
  private events: readonly MonitorEvent[] = [];
  private byLoader = new Map<string, ByKind>();

  /** @param events - of the session; a list that was read before is not read again */
  update(events: readonly MonitorEvent[]): void {
    if (events === this.events) {
      return;
    }
    this.events = events;
    this.byLoader = new Map();
    for (const event of events) {
      if (event.kind === 'diagnosis' || event.kind === 'profile') {
        this.read(event);
      }
    }
  }

  /** @param analysis - what was found last may have come before its event */
  of(loader: string, analysis: AnalysisState | null): Found {
    const found = this.byLoader.get(loader) ?? NOTHING;
    const [diagnosis, profile] = [analysis?.diagnosing?.result, analysis?.profiling?.result];
    return {
      diagnoses:
        found.diagnoses.length === 0 && diagnosis?.loader === loader
          ? [diagnosis]
          : found.diagnoses,
      profiles:
        found.profiles.length === 0 && profile?.loader === loader ? [profile] : found.profiles
    };
  }

  private read(event: MonitorEvent): void {
    try {
      if (event.kind === 'diagnosis') {
        const found = decode('DiagnosisResult', event.result);
        this.results(found.loader).diagnoses.push(found);
      } else {
        const found = decode('ProfileResult', event.result);
        this.results(found.loader ?? '').profiles.push(found);
      }
    } catch (error) {
      // A recording of another version: the rest of it can be shown.
      console.warn(`kernel_monitor: what was found (${event.kind}) cannot be read.`, error);
    }
  }

  private results(loader: string): ByKind {
    const results = this.byLoader.get(loader) ?? { diagnoses: [], profiles: [] };
    this.byLoader.set(loader, results);
    return results;
  }
}

const NOTHING: Found = { diagnoses: [], profiles: [] };
