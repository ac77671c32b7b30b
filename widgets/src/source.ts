/**
 * Where a view's measurements come from. A view knows a `MonitorSource` and never Jupyter: the cell, the sidebar and a
 * test are sources of the same kind.
 */

import type { StreamStats } from './accounts.js';
import type { AnalysisState } from './analysis.js';
import type { ChartDocument } from './commands.js';
import type { Connection } from './connection.js';
import type { Emitter } from './emitter.js';
import type { Recorded } from './sessions.js';
import type { ChartChoice, Changes, Recording, Settings } from './settings.js';
import type { History, Knobs, LoaderState, MonitorEvent, Rows, Schema, Strip } from './wire.js';

export interface MonitorSource {
  readonly connection: Connection;
  /** The session that the schema belongs to; null when nothing was measured. */
  readonly session: string | null;
  readonly schema: Schema | null;
  readonly loaders: readonly LoaderState[];
  readonly strip: Strip | null;
  readonly events: readonly MonitorEvent[];
  /** What can be set; null where the kernel's half is too old, and for a recording. */
  readonly settings: Settings | null;
  /** The charts to choose from. */
  readonly charts: readonly ChartChoice[];
  /** Whether and where the session is being recorded. */
  readonly recording: Recording | null;
  /** The file that is shown; null for what runs now. */
  readonly recorded: Recorded | null;
  /** Verdicts, and how far *Diagnose* and profiling are; null where the kernel's half is too old. */
  readonly analysis: AnalysisState | null;
  readonly stats: StreamStats;
  /** Count the stream from here on. */
  resetStats(): void;
  /** Whether `start` can do something now. */
  readonly canStart: boolean;

  readonly connectionChanged: Emitter<Connection>;
  /** Another session or schema: charts are to be built anew. Its rows follow. */
  readonly opened: Emitter<Schema>;
  /** Measured rows, live ones one by one; rows that were missed come later, and some may come twice. */
  readonly arrived: Emitter<Rows>;
  /** Loaders, strip, events, settings, the analysis or the recording's state changed. */
  readonly changed: Emitter<void>;

  /** A source rests (no frames are sent to it) until it is visible, and again when it no longer is. */
  setVisible(visible: boolean): void;
  start(): Promise<void>;
  stop(): Promise<void>;
  /** End a pause. */
  resume(): Promise<void>;
  /** Ask again who is there and what the schema is. */
  refresh(): void;
  /** Everything measured, from the kernel's memory. */
  history(): Promise<History>;
  /** `confirmed`: a person has said yes to what the backend's `confirm` asks; without it the kernel refuses. */
  switchTo(loader: string, backend: string, confirmed?: boolean): Promise<LoaderState>;
  /** No to the engine that is offered to a loader. */
  decline(loader: string): Promise<void>;
  /** Change some of a loader's knobs. */
  set(loader: string, knobs: Partial<Knobs>): Promise<LoaderState>;
  /**
   * Measure each engine in the running loop, and go back.
   *
   * @param synthetic - a person has said yes to replayed batches, too
   */
  diagnose(loader: string, synthetic: boolean): Promise<void>;
  cancelDiagnosis(): Promise<void>;
  /** Profile the loop's next steps. */
  profile(loader: string, steps: number): Promise<void>;
  /** Note this moment in the session under these words. */
  mark(label: string): Promise<void>;
  /** Change settings of the kernel's monitor, while it runs too. */
  configure(changes: Changes): Promise<void>;
  /** Read the file that is shown again, where it is still being written. */
  reload?(): Promise<void>;
  document(): Promise<ChartDocument>;
  bokehjs(): Promise<{ version: string; text: string }>;
  exportPage(): Promise<{ filename: string; html: string }>;
  dispose(): void;
}
