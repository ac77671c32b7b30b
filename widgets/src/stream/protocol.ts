/** The messages between kernel and page; `make protocol` makes them from kernel_monitor/protocol. */

/**
 * The change that a piece of advice is for or against.
 */
export interface AdvicePoint {
  readonly about: string;
  readonly target: string;
  readonly stance: 'for' | 'against' | 'neutral';
}
/**
 * A sentence of advice; `segment`: the key of its segment, or None for the session.
 */
export interface AdviceState {
  readonly text: string;
  readonly points: readonly AdvicePoint[];
  readonly segment: string | null;
}
/**
 * Reply to `bokehjs`; its buffer is BokehJS.
 */
export interface BokehReply {
  readonly status: 'ok';
  readonly version: string;
}
/**
 * The measurement of an engine on some of the loader's files.
 *
 * `files`: how many; `seconds`: CPU time per image, all threads together; `error`: half of the 95 % interval of that
 * mean, s; `reason`: why there is none, a sentence without its full stop.
 */
export interface CalibrationState {
  readonly state: 'running' | 'done' | 'failed';
  readonly files: number;
  readonly seconds: number | null;
  readonly error: number | null;
  readonly reason: string | null;
}
/**
 * A chart that can be chosen; `reason`: why it is not available.
 */
export interface ChartState {
  readonly id: string;
  readonly title: string;
  readonly available: boolean;
  readonly default: boolean;
  readonly reason: string | null;
}
/**
 * Reply to `code`: the text of a Python file that delivers a loader's batches.
 */
export interface CodeReply {
  readonly status: 'ok';
  readonly filename: string;
  readonly code: string;
}
/**
 * Reply to `configure`.
 */
export interface ConfigureReply {
  readonly status: 'ok';
  readonly settings: SettingsState;
}
/**
 * The monitor's settings; see `runtime.settings.Settings`.
 */
export interface SettingsState {
  readonly interval: number;
  readonly history: number;
  readonly charts: readonly string[];
  readonly record: boolean;
  readonly record_to: string | null;
  readonly price: number | null;
  readonly node_price?: number | null;
  readonly currency: string;
  readonly node_names?: boolean;
  readonly unfolded?: readonly string[];
}
/**
 * The result of a diagnosis or a tune; `cannot`: what could not be measured, and why.
 *
 * Of a tune: `line` is the setting that goes on as code, `undo` the one from before it; both null where it changed
 * nothing.
 */
export interface DiagnosisResult {
  readonly kind?: 'diagnose' | 'tune';
  readonly loader: string;
  readonly name: string;
  readonly began: number | null;
  readonly ended: number | null;
  readonly back_to: string | null;
  readonly synthetic: boolean;
  readonly message: string | null;
  readonly runs: readonly Trial[];
  readonly predicted: readonly GainState[];
  readonly measured: readonly GainState[];
  readonly best: string | null;
  readonly sentence: string;
  readonly advised: readonly AdviceState[];
  readonly cannot: readonly string[];
  readonly line?: string | null;
  readonly undo?: string | null;
}
/**
 * The figures of one engine in a diagnosis, of one setting in a tune (`label`: in words).
 *
 * `rate` in images/s with quartiles, `step` and `wait` in ms.
 */
export interface Trial {
  readonly backend: string;
  readonly start: number | null;
  readonly end: number | null;
  readonly seconds: number | null;
  readonly steps: number;
  readonly batches: number | null;
  readonly samples: number | null;
  readonly rate: number | null;
  readonly rate_low: number | null;
  readonly rate_high: number | null;
  readonly step: number | null;
  readonly wait: number | null;
  readonly of_ceiling: number | null;
  readonly cpu_p50: number | null;
  readonly cpu_p95: number | null;
  readonly gpu_p50: number | null;
  readonly problem: string | null;
  readonly label?: string;
}
/**
 * The share of the step time that a change saves (negative: longer steps); `action`: an engine, or `loader`.
 */
export interface GainState {
  readonly action: string;
  readonly low: number | null;
  readonly high: number | null;
  readonly measured: number | null;
  readonly basis: string;
  readonly by: string;
}
/**
 * Progress of a diagnosis or a tune; `backend`: the engine under measurement; `done` of `total` engines, or as many
 * settings of a tune, whose total is not known (0).
 */
export interface DiagnosisState {
  readonly kind?: 'diagnose' | 'tune';
  readonly state: 'running' | 'done' | 'failed' | 'cancelled';
  readonly loader: string;
  readonly name: string;
  readonly backend: string | null;
  readonly done: number;
  readonly total: number;
  readonly seconds_left: number | null;
  readonly message: string;
  readonly result: DiagnosisResult | null;
}
/**
 * Reply to `document`; its buffer is the chart document (JSON) for this version of the schema and of Bokeh.
 */
export interface DocumentReply {
  readonly status: 'ok';
  readonly schema: number;
  readonly bokeh: string;
}
/**
 * A session in a report's file, which the page reads as if a kernel had sent it; rows are means over bins.
 *
 * `bokeh`: version of BokehJS; `item`: the chart document; `percent`: for each series whether its values are bytes of
 * whole per cent; `zone_ms`: offset of the shown times from UTC; `table`: the values, deflated, in base64.
 */
export interface EmbeddedSession {
  readonly bokeh: string;
  readonly item: unknown;
  readonly schema: SchemaState;
  readonly events: readonly Event[];
  readonly rows: number;
  readonly percent: readonly boolean[];
  readonly zone_ms: number;
  readonly table: string;
}
/**
 * The meaning of the table's columns; `version` grows with every change.
 */
export interface SchemaState {
  readonly version: number;
  readonly interval: number;
  readonly origin: number;
  readonly capacity: number;
  readonly series: readonly Series[];
  readonly cpus: readonly number[];
  readonly gpus: readonly Gpu[];
  readonly gpu_reason: string | null;
  readonly loaders: readonly SchemaLoader[];
  readonly nodes?: readonly SchemaNode[];
  readonly ranks?: readonly SchemaRank[];
  readonly host: Host;
  readonly charts: readonly string[];
}
/**
 * One column of the table: a name such as `cpu/0/busy`, a unit such as `%`.
 */
export interface Series {
  readonly name: string;
  readonly unit: string;
}
/**
 * One GPU; `reasons`: the driver's message for each metric that it lacks.
 */
export interface Gpu {
  readonly index: number;
  readonly name: string;
  readonly memory_total: number | null;
  readonly reasons: Readonly<Record<string, string>>;
  readonly mig: readonly MigInstance[];
  readonly throttle: readonly string[];
}
/**
 * A MIG instance of a GPU.
 */
export interface MigInstance {
  readonly index: number;
  readonly name: string;
  readonly memory_total: number | null;
}
/**
 * A loader that has columns; `phased`: among them those of phases.
 */
export interface SchemaLoader {
  readonly id: string;
  readonly name: string;
  readonly phased: boolean;
}
/**
 * Another machine that has columns; `cores`: its logical ones; `reason`: why it is not alive.
 *
 * `gpus`: the products' names of its GPUs; `folded`: shown in one row, the mean of its cores.
 */
export interface SchemaNode {
  readonly id: string;
  readonly name: string;
  readonly cores: readonly number[];
  readonly alive: boolean;
  readonly reason: string | null;
  readonly gpus: readonly string[];
  readonly folded: boolean;
}
/**
 * A rank that has columns; `host`: another machine's name, empty for this one; `reason`: why it is not alive.
 *
 * `node`: the id of its host among the nodes, empty for this machine; `gpu`: the index of its GPU there;
 * `clock`: ms by which its host's clock is known.
 */
export interface SchemaRank {
  readonly id: string;
  readonly job: number;
  readonly number: number;
  readonly world: number | null;
  readonly host: string;
  readonly steps: boolean;
  readonly alive: boolean;
  readonly reason: string | null;
  readonly node: string;
  readonly gpu: number | null;
  readonly clock: number | null;
}
/**
 * The machine; `memory_total` in bytes; `reasons`: why a metric is missing, by its name.
 */
export interface Host {
  readonly cpu_model?: string | null;
  readonly logical_cpus?: number;
  readonly memory_total?: number;
  readonly platform?: string | null;
  readonly limits?: Limits;
  readonly topology?: Topology;
  readonly reasons?: Readonly<Record<string, string>>;
}
/**
 * The limits of a container or an affinity mask: cores, cores' worth of time, bytes; `source`: what limits them.
 */
export interface Limits {
  readonly cpus?: readonly number[];
  readonly cpu_quota?: number | null;
  readonly memory?: number | null;
  readonly source?: string | null;
}
/**
 * The cores of each socket and of each NUMA node.
 */
export interface Topology {
  readonly sockets?: readonly number[][];
  readonly numa?: readonly number[][];
}
/**
 * Something that happened at a session time; further fields depend on `kind` (docs/messages.md).
 */
export interface Event {
  readonly id: number;
  readonly kind: string;
  readonly time: number;
  readonly [k: string]: unknown;
}
/**
 * An engine of a loader.
 *
 * `reason`: why it is not available; `confirm`: the question to ask before switching to it; `note`: which part of the
 * transforms another engine performs for it.
 */
export interface EngineState {
  readonly name: string;
  readonly available: boolean;
  readonly reason: string | null;
  readonly confirm: string | null;
  readonly note: string | null;
}
/**
 * Counts of one epoch: batches and samples delivered; samples planned, skipped, replaced, lost and doubled.
 *
 * `finished`: its iterator said that it was at its end; missing in older recordings of switchable loaders.
 */
export interface EpochCounts {
  readonly epoch: number;
  readonly batches: number;
  readonly samples: number;
  readonly planned: number | null;
  readonly lost: number;
  readonly doubled: number;
  readonly skipped: number;
  readonly replaced: number;
  readonly decoded: Readonly<Record<string, number>>;
  readonly finished?: boolean;
}
/**
 * A failed request: the exception's class name and its message.
 */
export interface ErrorReply {
  readonly status: 'error';
  readonly error: string;
  readonly message: string;
}
/**
 * Reply to `export`; its buffer is the HTML file.
 */
export interface ExportReply {
  readonly status: 'ok';
  readonly filename: string;
}
/**
 * Figures of a status bar, with the kind of the current verdict and the state of the recording.
 */
export interface Figures {
  readonly cpu: number | null;
  readonly gpu: number | null;
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  readonly gpu_memory_used: number | null;
  readonly gpu_memory_total: number | null;
  readonly images: number | null;
  readonly kind:
    ('input-bound' | 'copy-bound' | 'compute-bound' | 'residual-heavy' | 'undetermined') | null;
  readonly recording: RecordingState;
}
/**
 * The recording of the session; `moved`: recorded in another folder than requested; `message` is for people.
 */
export interface RecordingState {
  readonly state: 'recording' | 'moved' | 'stopped' | 'off';
  readonly path: string | null;
  readonly message: string;
}
/**
 * The results of the live analysis; a frame has only the fields that changed. `ranks`: sentences on jobs of ranks.
 *
 * `main`: the id of the loader whose loop trains, where several take turns; None before the first step. `notices`:
 * sentences on GPUs that the kernel holds while no cell runs, and on experiment logs that fail.
 */
export interface Findings {
  readonly verdict?: VerdictState | null;
  readonly offers?: readonly OfferState[];
  readonly diagnosing?: DiagnosisState | null;
  readonly profiling?: ProfileState | null;
  readonly ranks?: readonly string[];
  readonly notices?: readonly string[];
  readonly main?: string | null;
}
/**
 * The verdict on a loader's steps (see `analysis.results.Verdict`). `warnings`: sentences of rules.
 *
 * `over`: its loop has ended, or pauses; the sentence is of all its steps since the last change.
 */
export interface VerdictState {
  readonly kind: 'input-bound' | 'copy-bound' | 'compute-bound' | 'residual-heavy' | 'undetermined';
  readonly segment: string | null;
  readonly sentence: string;
  readonly advised: readonly AdviceState[];
  readonly advice: string;
  readonly shares: Readonly<Record<string, number | null>>;
  readonly steps: number;
  readonly missing: readonly string[];
  readonly gains: readonly GainState[];
  readonly warnings: readonly string[];
  readonly loader: string;
  readonly over: boolean;
}
/**
 * A switch offered to a loop that waits for its data.
 */
export interface OfferState {
  readonly loader: string;
  readonly source: string;
  readonly engine: string;
  readonly sentence: string;
  readonly gain: GainState | null;
}
/**
 * Progress of a profile: `done` of `total` steps.
 */
export interface ProfileState {
  readonly state: 'running' | 'done' | 'failed';
  readonly loader: string | null;
  readonly name: string | null;
  readonly done: number;
  readonly total: number;
  readonly message: string;
  readonly result: ProfileResult | null;
}
/**
 * The result of a profile; `gpu_reason`: why there are no GPU kernels; `trace`: name of its file.
 */
export interface ProfileResult {
  readonly loader: string | null;
  readonly name: string | null;
  readonly backend: string | null;
  readonly began: number | null;
  readonly ended: number | null;
  readonly steps: number;
  readonly cpu: readonly Operator[];
  readonly gpu: readonly GpuKernel[];
  readonly gpu_reason: string | null;
  readonly wall_ms: number | null;
  readonly cpu_ms: number | null;
  readonly gpu_ms: number | null;
  readonly trace: string | null;
}
/**
 * A CPU operator of a profile: its share of all operators' time, own ms and calls in all steps.
 */
export interface Operator {
  readonly name: string;
  readonly share: number | null;
  readonly self_ms: number | null;
  readonly count: number | null;
}
/**
 * A GPU kernel of a profile: its share of all kernels' time, ms and launches in all steps.
 */
export interface GpuKernel {
  readonly name: string;
  readonly share: number | null;
  readonly ms: number | null;
  readonly launches: number | null;
}
/**
 * Reply to `decline`, `diagnose`, `profile` and `verdict`: that part of the findings.
 */
export interface FindingsReply {
  readonly status: 'ok';
  readonly verdict?: VerdictState | null;
  readonly offers?: readonly OfferState[];
  readonly diagnosing?: DiagnosisState | null;
  readonly profiling?: ProfileState | null;
  readonly ranks?: readonly string[];
  readonly notices?: readonly string[];
  readonly main?: string | null;
}
/**
 * `kernel_monitor_frame`: a new row; its buffer has one float32 per series, NaN if missing.
 *
 * `before`: seq and time of rows that were not sent on their own; the buffer has them first. Without `loaders` their
 * counts are sent with a later one.
 */
export interface Frame {
  readonly verdict?: VerdictState | null;
  readonly offers?: readonly OfferState[];
  readonly diagnosing?: DiagnosisState | null;
  readonly profiling?: ProfileState | null;
  readonly ranks?: readonly string[];
  readonly notices?: readonly string[];
  readonly main?: string | null;
  readonly protocol: number;
  readonly session: string | null;
  readonly schema: number;
  readonly seq: number;
  readonly time: number;
  readonly sampled: number;
  readonly sent: number;
  readonly missed: number;
  readonly before?: readonly number[][];
  readonly loaders?: readonly LoaderState[];
  readonly events: readonly Event[];
  readonly strip: Strip | null;
  readonly recording?: RecordingState;
}
/**
 * A loader; counts are of its newest epoch.
 *
 * `wanted`: the engine requested and not yet in use; `skips`: the last skipped samples; `decoded`: samples by engine;
 * `nodes`: other machines that work for it now; `remote`: what limits them; `ended`: the loader is gone, and this is
 * its last state. Of a loader that all ranks of a job have: how many `ranks`; `padded`, samples that the samplers plan
 * again so that each rank has as many; `once`: whether `lost` and `doubled` are counted over all ranks. `attached`: a
 * DataLoader that was not wrapped.
 */
export interface LoaderState {
  readonly id: string;
  readonly name: string;
  readonly backend: string;
  readonly wanted: string | null;
  readonly status: string;
  readonly backends: readonly EngineState[];
  readonly epoch: number;
  readonly batch: number;
  readonly batches: number | null;
  readonly samples: number;
  readonly planned: number | null;
  readonly lost: number;
  readonly doubled: number;
  readonly skipped: number;
  readonly replaced: number;
  readonly skips: readonly Skip[];
  readonly knobs: KnobsState;
  readonly decoded: Readonly<Record<string, number>>;
  readonly calibration: Readonly<Record<string, CalibrationState>>;
  readonly finished?: boolean;
  readonly nodes?: number;
  readonly remote?: RemoteLimits | null;
  readonly ended?: boolean;
  readonly ranks?: number;
  readonly padded?: number;
  readonly once?: boolean;
  readonly attached?: boolean;
}
/**
 * A sample left out because its file cannot be read; `path` is the file's name only.
 *
 * `index` is -1 where the sampler gave a key that is no index: that stands before the name.
 */
export interface Skip {
  readonly index: number;
  readonly path: string;
  readonly reason: string;
}
/**
 * The current knobs; None for those that the loader lacks.
 */
export interface KnobsState {
  readonly workers: number | null;
  readonly prefetch: number | null;
  readonly threads: number | null;
}
/**
 * Images/s that can reach the kernel from other machines at most: through the driver process, over the link.
 */
export interface RemoteLimits {
  readonly driver: number;
  readonly link: number | null;
}
/**
 * Figures before and after the last switch; `back`: the engine to return to, if the switch lost speed.
 */
export interface Strip {
  readonly loader: string;
  readonly source: string;
  readonly target: string;
  readonly text: string;
  readonly rows: readonly StripRow[];
  readonly back: string | null;
}
/**
 * One figure before and after a switch.
 */
export interface StripRow {
  readonly label: string;
  readonly unit: string;
  readonly before: number | null;
  readonly after: number | null;
}
/**
 * `kernel_monitor_glance`: sent once a second to pages without charts.
 */
export interface Glance {
  readonly cpu: number | null;
  readonly gpu: number | null;
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  readonly gpu_memory_used: number | null;
  readonly gpu_memory_total: number | null;
  readonly images: number | null;
  readonly kind:
    ('input-bound' | 'copy-bound' | 'compute-bound' | 'residual-heavy' | 'undetermined') | null;
  readonly recording: RecordingState;
  readonly protocol: number;
  readonly session: string | null;
}
/**
 * Reply to `glance`; `sidebar`: the page that is asked to open its sidebar.
 */
export interface GlanceReply {
  readonly status: 'ok';
  readonly lease: number;
  readonly session: string | null;
  readonly running: boolean;
  readonly paused: boolean;
  readonly glance: Figures;
  readonly sidebar: string | null;
}
/**
 * Reply to `hello`, `start` and `stop`.
 */
export interface HelloReply {
  readonly status: 'ok';
  readonly settings: SettingsState;
  readonly charts: readonly ChartState[];
  readonly recording: RecordingState;
  readonly protocol: number;
  readonly version: string;
  readonly environment: string;
  readonly ipykernel: string | null;
  readonly bokeh: string | null;
  readonly running: boolean;
  readonly session: string | null;
}
/**
 * Reply to `history`; buffers: seq and time (float64), values (float32, row-major).
 */
export interface HistoryReply {
  readonly status: 'ok';
  readonly schema: SchemaState;
  readonly rows: number;
  readonly events: readonly Event[];
  readonly charts: readonly ChartState[];
}
/**
 * The identity of the kernel's half: protocol, package and environment, versions, and state.
 */
export interface Identity {
  readonly settings: SettingsState;
  readonly charts: readonly ChartState[];
  readonly recording: RecordingState;
  readonly protocol: number;
  readonly version: string;
  readonly environment: string;
  readonly ipykernel: string | null;
  readonly bokeh: string | null;
  readonly running: boolean;
  readonly session: string | null;
}
/**
 * Reply to `switch` and `set`.
 */
export interface LoaderReply {
  readonly status: 'ok';
  readonly loader: LoaderState;
}
/**
 * Figures of a status bar: CPU and GPU in %, memory in bytes, images/s (wall clock) of the loop that trains.
 */
export interface MachineFigures {
  readonly cpu: number | null;
  readonly gpu: number | null;
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  readonly gpu_memory_used: number | null;
  readonly gpu_memory_total: number | null;
  readonly images: number | null;
}
/**
 * Settings, charts and recording, in several messages.
 */
export interface MonitorState {
  readonly settings: SettingsState;
  readonly charts: readonly ChartState[];
  readonly recording: RecordingState;
}
/**
 * `kernel_monitor_notice`: something changed; further fields depend on `kind` (docs/messages.md).
 */
export interface Notice {
  readonly settings: SettingsState;
  readonly charts: readonly ChartState[];
  readonly recording: RecordingState;
  readonly protocol: number;
  readonly version: string;
  readonly environment: string;
  readonly ipykernel: string | null;
  readonly bokeh: string | null;
  readonly running: boolean;
  readonly session: string | null;
  readonly kind: string;
  readonly [k: string]: unknown;
}
/**
 * Reply to `open`; `recorded` is the id to name in later requests.
 */
export interface OpenReply {
  readonly status: 'ok';
  readonly started: number;
  readonly ended: number | null;
  readonly live: boolean;
  readonly goodbye: boolean;
  readonly reason: string | null;
  readonly seconds: number;
  readonly bin_s: number | null;
  readonly path: string;
  readonly recorded: string;
  readonly facts: Readonly<Record<string, unknown>>;
}
/**
 * A recorded session: `ended` is None while it is recorded; `bin_s`: s per row, None for every row.
 */
export interface RecordedLabel {
  readonly started: number;
  readonly ended: number | null;
  readonly live: boolean;
  readonly goodbye: boolean;
  readonly reason: string | null;
  readonly seconds: number;
  readonly bin_s: number | null;
  readonly path: string;
}
/**
 * Reply to a command without a result.
 */
export interface Reply {
  readonly status: 'ok';
}
/**
 * A loader in a report or a recording, with the counts of its earlier epochs.
 */
export interface ReportedState {
  readonly id: string;
  readonly name: string;
  readonly backend: string;
  readonly wanted: string | null;
  readonly status: string;
  readonly backends: readonly EngineState[];
  readonly epoch: number;
  readonly batch: number;
  readonly batches: number | null;
  readonly samples: number;
  readonly planned: number | null;
  readonly lost: number;
  readonly doubled: number;
  readonly skipped: number;
  readonly replaced: number;
  readonly skips: readonly Skip[];
  readonly knobs: KnobsState;
  readonly decoded: Readonly<Record<string, number>>;
  readonly calibration: Readonly<Record<string, CalibrationState>>;
  readonly finished?: boolean;
  readonly nodes?: number;
  readonly remote?: RemoteLimits | null;
  readonly ended?: boolean;
  readonly ranks?: number;
  readonly padded?: number;
  readonly once?: boolean;
  readonly attached?: boolean;
  readonly epochs: readonly EpochCounts[];
}
/**
 * `kernel_monitor_request`: a command with its arguments.
 */
export interface Request {
  readonly protocol: number;
  readonly command: string;
  readonly args: Readonly<Record<string, unknown>>;
}
/**
 * An entry of the list of recorded sessions; `problem`: why it cannot be read.
 */
export interface SessionEntry {
  readonly path: string;
  readonly id: string;
  readonly started: number;
  readonly seconds: number;
  readonly bytes: number;
  readonly live: boolean;
  readonly goodbye: boolean;
  readonly host: string;
  readonly told: boolean;
  readonly problem: string | null;
  readonly damaged: boolean;
}
/**
 * Reply to `sessions`.
 */
export interface SessionsReply {
  readonly status: 'ok';
  readonly sessions: readonly SessionEntry[];
}
/**
 * Reply to `subscribe`: everything that a page shows, except rows and the chart document.
 *
 * `recorded` is None for the running session.
 */
export interface SubscribeReply {
  readonly status: 'ok';
  readonly settings: SettingsState;
  readonly charts: readonly ChartState[];
  readonly recording: RecordingState;
  readonly verdict?: VerdictState | null;
  readonly offers?: readonly OfferState[];
  readonly diagnosing?: DiagnosisState | null;
  readonly profiling?: ProfileState | null;
  readonly ranks?: readonly string[];
  readonly notices?: readonly string[];
  readonly main?: string | null;
  readonly lease: number;
  readonly session: string | null;
  readonly running: boolean;
  readonly paused: boolean;
  readonly seq: number;
  readonly schema: SchemaState;
  readonly loaders: readonly LoaderState[];
  readonly events: readonly Event[];
  readonly strip: Strip | null;
  readonly recorded: RecordedLabel | null;
}

export const PROTOCOL = 2;
export const TARGET = 'kernel_monitor';
export const REQUEST = 'kernel_monitor_request';
export const REPLY = 'kernel_monitor_reply';
export const FRAME = 'kernel_monitor_frame';
export const NOTICE = 'kernel_monitor_notice';
export const GLANCE = 'kernel_monitor_glance';
export const VERSION = '1.0.0rc1';
/** Types that a page receives. */
export interface Received {
  readonly BokehReply: BokehReply;
  readonly CodeReply: CodeReply;
  readonly ConfigureReply: ConfigureReply;
  readonly SettingsState: SettingsState;
  readonly DocumentReply: DocumentReply;
  readonly EmbeddedSession: EmbeddedSession;
  readonly SchemaState: SchemaState;
  readonly Series: Series;
  readonly Gpu: Gpu;
  readonly MigInstance: MigInstance;
  readonly SchemaLoader: SchemaLoader;
  readonly SchemaNode: SchemaNode;
  readonly SchemaRank: SchemaRank;
  readonly Host: Host;
  readonly Limits: Limits;
  readonly Topology: Topology;
  readonly Event: Event;
  readonly ErrorReply: ErrorReply;
  readonly ExportReply: ExportReply;
  readonly FindingsReply: FindingsReply;
  readonly VerdictState: VerdictState;
  readonly AdviceState: AdviceState;
  readonly AdvicePoint: AdvicePoint;
  readonly GainState: GainState;
  readonly OfferState: OfferState;
  readonly DiagnosisState: DiagnosisState;
  readonly DiagnosisResult: DiagnosisResult;
  readonly Trial: Trial;
  readonly ProfileState: ProfileState;
  readonly ProfileResult: ProfileResult;
  readonly Operator: Operator;
  readonly GpuKernel: GpuKernel;
  readonly Frame: Frame;
  readonly LoaderState: LoaderState;
  readonly EngineState: EngineState;
  readonly Skip: Skip;
  readonly KnobsState: KnobsState;
  readonly CalibrationState: CalibrationState;
  readonly RemoteLimits: RemoteLimits;
  readonly Strip: Strip;
  readonly StripRow: StripRow;
  readonly RecordingState: RecordingState;
  readonly Glance: Glance;
  readonly GlanceReply: GlanceReply;
  readonly Figures: Figures;
  readonly HelloReply: HelloReply;
  readonly ChartState: ChartState;
  readonly HistoryReply: HistoryReply;
  readonly LoaderReply: LoaderReply;
  readonly Notice: Notice;
  readonly OpenReply: OpenReply;
  readonly SessionsReply: SessionsReply;
  readonly SessionEntry: SessionEntry;
  readonly SubscribeReply: SubscribeReply;
  readonly RecordedLabel: RecordedLabel;
}
/** Their fields, for `message_check.ts`. */
export const FIELDS: Readonly<Record<string, string>> = {
  BokehReply: 'status:string version:string',
  CodeReply: 'status:string filename:string code:string',
  ConfigureReply: 'status:string settings:SettingsState',
  SettingsState:
    'interval:number history:number charts:string[] record:boolean record_to:string? price:number? node_price?:number? currency:string node_names?:boolean unfolded?:string[]',
  DocumentReply: 'status:string schema:number bokeh:string',
  EmbeddedSession:
    'bokeh:string item:unknown schema:SchemaState events:Event[] rows:number percent:boolean[] zone_ms:number table:string',
  SchemaState:
    'version:number interval:number origin:number capacity:number series:Series[] cpus:number[] gpus:Gpu[] gpu_reason:string? loaders:SchemaLoader[] nodes?:SchemaNode[] ranks?:SchemaRank[] host:Host charts:string[]',
  Series: 'name:string unit:string',
  Gpu: 'index:number name:string memory_total:number? reasons:string{} mig:MigInstance[] throttle:string[]',
  MigInstance: 'index:number name:string memory_total:number?',
  SchemaLoader: 'id:string name:string phased:boolean',
  SchemaNode:
    'id:string name:string cores:number[] alive:boolean reason:string? gpus:string[] folded:boolean',
  SchemaRank:
    'id:string job:number number:number world:number? host:string steps:boolean alive:boolean reason:string? node:string gpu:number? clock:number?',
  Host: 'cpu_model?:string? logical_cpus?:number memory_total?:number platform?:string? limits?:Limits topology?:Topology reasons?:string{}',
  Limits: 'cpus?:number[] cpu_quota?:number? memory?:number? source?:string?',
  Topology: 'sockets?:number[][] numa?:number[][]',
  Event: 'id:number kind:string time:number',
  ErrorReply: 'status:string error:string message:string',
  ExportReply: 'status:string filename:string',
  FindingsReply:
    'status:string verdict?:VerdictState? offers?:OfferState[] diagnosing?:DiagnosisState? profiling?:ProfileState? ranks?:string[] notices?:string[] main?:string?',
  VerdictState:
    'kind:string segment:string? sentence:string advised:AdviceState[] advice:string shares:number?{} steps:number missing:string[] gains:GainState[] warnings:string[] loader:string over:boolean',
  AdviceState: 'text:string points:AdvicePoint[] segment:string?',
  AdvicePoint: 'about:string target:string stance:string',
  GainState: 'action:string low:number? high:number? measured:number? basis:string by:string',
  OfferState: 'loader:string source:string engine:string sentence:string gain:GainState?',
  DiagnosisState:
    'kind?:string state:string loader:string name:string backend:string? done:number total:number seconds_left:number? message:string result:DiagnosisResult?',
  DiagnosisResult:
    'kind?:string loader:string name:string began:number? ended:number? back_to:string? synthetic:boolean message:string? runs:Trial[] predicted:GainState[] measured:GainState[] best:string? sentence:string advised:AdviceState[] cannot:string[] line?:string? undo?:string?',
  Trial:
    'backend:string start:number? end:number? seconds:number? steps:number batches:number? samples:number? rate:number? rate_low:number? rate_high:number? step:number? wait:number? of_ceiling:number? cpu_p50:number? cpu_p95:number? gpu_p50:number? problem:string? label?:string',
  ProfileState:
    'state:string loader:string? name:string? done:number total:number message:string result:ProfileResult?',
  ProfileResult:
    'loader:string? name:string? backend:string? began:number? ended:number? steps:number cpu:Operator[] gpu:GpuKernel[] gpu_reason:string? wall_ms:number? cpu_ms:number? gpu_ms:number? trace:string?',
  Operator: 'name:string share:number? self_ms:number? count:number?',
  GpuKernel: 'name:string share:number? ms:number? launches:number?',
  Frame:
    'verdict?:VerdictState? offers?:OfferState[] diagnosing?:DiagnosisState? profiling?:ProfileState? ranks?:string[] notices?:string[] main?:string? protocol:number session:string? schema:number seq:number time:number sampled:number sent:number missed:number before?:number[][] loaders?:LoaderState[] events:Event[] strip:Strip? recording?:RecordingState',
  LoaderState:
    'id:string name:string backend:string wanted:string? status:string backends:EngineState[] epoch:number batch:number batches:number? samples:number planned:number? lost:number doubled:number skipped:number replaced:number skips:Skip[] knobs:KnobsState decoded:number{} calibration:CalibrationState{} finished?:boolean nodes?:number remote?:RemoteLimits? ended?:boolean ranks?:number padded?:number once?:boolean attached?:boolean',
  EngineState: 'name:string available:boolean reason:string? confirm:string? note:string?',
  Skip: 'index:number path:string reason:string',
  KnobsState: 'workers:number? prefetch:number? threads:number?',
  CalibrationState: 'state:string files:number seconds:number? error:number? reason:string?',
  RemoteLimits: 'driver:number link:number?',
  Strip: 'loader:string source:string target:string text:string rows:StripRow[] back:string?',
  StripRow: 'label:string unit:string before:number? after:number?',
  RecordingState: 'state:string path:string? message:string',
  Glance:
    'cpu:number? gpu:number? memory_used:number? memory_total:number? gpu_memory_used:number? gpu_memory_total:number? images:number? kind:string? recording:RecordingState protocol:number session:string?',
  GlanceReply:
    'status:string lease:number session:string? running:boolean paused:boolean glance:Figures sidebar:string?',
  Figures:
    'cpu:number? gpu:number? memory_used:number? memory_total:number? gpu_memory_used:number? gpu_memory_total:number? images:number? kind:string? recording:RecordingState',
  HelloReply:
    'status:string settings:SettingsState charts:ChartState[] recording:RecordingState protocol:number version:string environment:string ipykernel:string? bokeh:string? running:boolean session:string?',
  ChartState: 'id:string title:string available:boolean default:boolean reason:string?',
  HistoryReply: 'status:string schema:SchemaState rows:number events:Event[] charts:ChartState[]',
  LoaderReply: 'status:string loader:LoaderState',
  Notice:
    'settings:SettingsState charts:ChartState[] recording:RecordingState protocol:number version:string environment:string ipykernel:string? bokeh:string? running:boolean session:string? kind:string',
  OpenReply:
    'status:string started:number ended:number? live:boolean goodbye:boolean reason:string? seconds:number bin_s:number? path:string recorded:string facts:unknown{}',
  SessionsReply: 'status:string sessions:SessionEntry[]',
  SessionEntry:
    'path:string id:string started:number seconds:number bytes:number live:boolean goodbye:boolean host:string told:boolean problem:string? damaged:boolean',
  SubscribeReply:
    'status:string settings:SettingsState charts:ChartState[] recording:RecordingState verdict?:VerdictState? offers?:OfferState[] diagnosing?:DiagnosisState? profiling?:ProfileState? ranks?:string[] notices?:string[] main?:string? lease:number session:string? running:boolean paused:boolean seq:number schema:SchemaState loaders:LoaderState[] events:Event[] strip:Strip? recorded:RecordedLabel?',
  RecordedLabel:
    'started:number ended:number? live:boolean goodbye:boolean reason:string? seconds:number bin_s:number? path:string'
};
