/**
 * Where a view's measurements come from: a live kernel, a recording, or the file of a report. A view knows its source by
 * these interfaces and knows nothing of Jupyter.
 */

import type { CodeReply } from './protocol.js';
import type { StreamStats } from './accounts.js';
import type { AnalysisState } from '../analysis/analysis.js';
import type { ChartDocument } from './commands.js';
import type { Connection } from './connection.js';
import type { Emitter } from './emitter.js';
import type { Recorded } from './sessions.js';
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
  Settings,
  Strip
} from './page_messages.js';

/** A source that charts are drawn from. */
export interface ChartSource {
  readonly schema: Schema | null;
  readonly events: readonly MonitorEvent[];
  /** Another session or schema: charts are to be built anew. Its rows follow. */
  readonly opened: Emitter<Schema>;
  /** Measured rows, live ones one by one; rows that were missed come later, and some may come twice. */
  readonly arrived: Emitter<Rows>;
  /** Something changed that is no row: the events, or what else the source has. */
  readonly changed: Emitter<void>;
  /** Ask again what the schema is. */
  refresh(): void;
  /** Everything measured. */
  history(): Promise<History>;
  document(): Promise<ChartDocument>;
  bokehjs(): Promise<{ version: string; text: string }>;
}

/** A source that a dashboard shows: charts, and a session with its loaders, which it can also change. */
export interface MonitorSource extends ChartSource {
  readonly connection: Connection;
  /** The session that the schema belongs to; null when nothing was measured. */
  readonly session: string | null;
  readonly loaders: readonly LoaderState[];
  readonly strip: Strip | null;
  /** The settings; null before the first subscription, and for a recording. */
  readonly settings: Settings | null;
  /** The charts to choose from. */
  readonly charts: readonly ChartChoice[];
  /** The state and the place of the session's recording. */
  readonly recording: Recording | null;
  /** A cell is running. */
  readonly busy: boolean;
  /** The file that is shown; null for what runs now. */
  readonly recorded: Recorded | null;
  /** Verdicts, and how far *Diagnose* and profiling are; null before the first subscription. */
  readonly analysis: AnalysisState | null;
  readonly stats: StreamStats;
  /** Reset the counts of the stream. */
  resetStats(): void;
  /** True if `start` can do something now. */
  readonly canStart: boolean;

  readonly connectionChanged: Emitter<Connection>;

  /** A source rests (no frames are sent to it) until it is visible, and again when it no longer is. */
  setVisible(visible: boolean): void;
  start(): Promise<void>;
  stop(): Promise<void>;
  /** End a pause. */
  resume(): Promise<void>;
  /** `confirmed`: a person has said yes to what the backend's `confirm` asks; without it the kernel refuses. */
  switchTo(loader: string, backend: string, confirmed?: boolean): Promise<LoaderState>;
  /** Decline the engine that is offered to a loader. */
  decline(loader: string): Promise<void>;
  /** Change some of a loader's knobs. */
  set(loader: string, knobs: Partial<Knobs>): Promise<LoaderState>;
  /**
   * Measure each engine in the running loop, and go back.
   *
   * @param synthetic - a person has said yes to replayed batches, too
   */
  diagnose(loader: string, synthetic: boolean): Promise<void>;
  /** Find the fastest engine and knobs in the running loop, and go on with them. */
  tune(loader: string): Promise<void>;
  /** A Python file that delivers the loader's batches without this package. */
  code(loader: string): Promise<CodeReply>;
  /** Bring back the setting from before the newest tune. */
  undoTune(): Promise<void>;
  /** End the diagnosis or the tune under way. */
  cancelDiagnosis(): Promise<void>;
  /** Profile the loop's next steps. */
  profile(loader: string, steps: number): Promise<void>;
  /** Note this moment in the session under these words. */
  mark(label: string): Promise<void>;
  /** Change settings of the kernel's monitor, while it runs too. */
  configure(changes: Changes): Promise<void>;
  /** Read the file that is shown again, where it is still being written. */
  reload?(): Promise<void>;
  exportPage(): Promise<{ filename: string; html: string }>;
  dispose(): void;
}
