/**
 * The messages between kernel and page: names, version, types and decoding
 * (docs/architecture.md; mirrors kernel_monitor/stream/wire.py).
 *
 * `tests/wire/golden` holds one example of each message, asserted from both languages.
 */

import { decodeAnalysis, type AnalysisNews } from './analysis.js';
import { bytes, floats, need, object, WireError, type Buffer } from './check.js';
import { decodeCharts, decodeRecording, decodeSettings } from './settings.js';
import type { ChartChoice, Recording, Settings } from './settings.js';
import { decodeRecorded, type Recorded } from './sessions.js';

export { WireError, type Buffer };

/** Grows when an older page or kernel could misread a message. */
export const PROTOCOL = 1;

/** Target of the comm in the kernel's list that says that it answers requests. */
export const TARGET = 'kernel_monitor';
export const REQUEST = 'kernel_monitor_request';
export const REPLY = 'kernel_monitor_reply';
export const FRAME = 'kernel_monitor_frame';
export const NOTICE = 'kernel_monitor_notice';
export const GLANCE = 'kernel_monitor_glance';

/** The version of this half, for the sentence about halves that do not fit. */
export const VERSION = '0.1.0';

/** One column: a name such as `cpu/0/busy`, a unit such as `%`. */
export interface Series {
  readonly name: string;
  readonly unit: string;
}

/** The meaning of a table's columns at one moment. */
export interface Schema {
  /** Grows with every change. */
  readonly version: number;
  /** Seconds between two rows. */
  readonly interval: number;
  /** Wall clock (Unix seconds) at `time == 0`. */
  readonly origin: number;
  /** The most rows that the kernel keeps. */
  readonly capacity: number;
  /** Ids of the charts that its document draws. */
  readonly charts?: readonly string[];
  readonly series: readonly Series[];
  readonly loaders: readonly { readonly id: string; readonly name: string }[];
  readonly gpus?: readonly {
    readonly index: number;
    readonly memory_total: number | null;
    /** NVML's words for each metric that there is not. */
    readonly reasons?: Readonly<Record<string, string>>;
  }[];
  /** Why there is no GPU; null when there is one. */
  readonly gpu_reason?: string | null;
  readonly host?: {
    readonly cpu_model?: string | null;
    readonly logical_cpus?: number;
    readonly memory_total?: number | null;
    readonly limits?: { readonly cpus?: readonly number[]; readonly memory?: number | null };
  };
}

export interface Backend {
  readonly name: string;
  readonly available: boolean;
  /** Why it is not available; null when it is. */
  readonly reason: string | null;
  /** What a person is to be asked before it is switched to; null where there is nothing to ask. */
  readonly confirm: string | null;
  /** Which part of the transforms it leaves to others, and to whom; null where it does all. Older kernels: missing. */
  readonly note?: string | null;
}

/**
 * What can be changed while a loader runs (mirrors `KnobsState` of kernel_monitor/loaders/state.py); all null of an
 * iterable that is only watched.
 */
export interface Knobs {
  /** Processes that load for `torchvision`. */
  readonly workers: number | null;
  /** Batches in flight: per worker for `torchvision`, in all for DALI. */
  readonly prefetch: number | null;
  /** Threads of DALI; null where no backend of DALI can run. */
  readonly threads: number | null;
}

/** A sample that was left out because its file cannot be read. */
export interface Skip {
  readonly index: number;
  readonly path: string;
  readonly reason: string;
}

export interface LoaderState {
  readonly id: string;
  readonly name: string;
  /** The engine in use. */
  readonly backend: string;
  /** The engine asked for and not yet in use; null otherwise. */
  readonly wanted: string | null;
  /** The sentence of the page's status region. */
  readonly status: string;
  readonly backends: readonly Backend[];
  readonly epoch: number;
  readonly batch: number;
  /** Batches of the epoch; null when the sampler has no length. */
  readonly batches: number | null;
  readonly samples: number;
  readonly planned: number | null;
  readonly lost: number;
  readonly doubled: number;
  /** Samples of the epoch that were left out, their files being unreadable. */
  readonly skipped: number;
  /** Samples of the epoch whose places replayed batches took. */
  readonly replaced: number;
  /** The last few that were left out, oldest first. */
  readonly skips: readonly Skip[];
  readonly knobs: Knobs;
  /** How many of the epoch's samples each engine decoded. */
  readonly decoded: Readonly<Record<string, number>>;
  /** The loader is gone; this is its last state. */
  readonly ended?: boolean;
}

export interface MonitorEvent {
  readonly id: number;
  readonly kind: string;
  /** Seconds since the session began. */
  readonly time: number;
  readonly [field: string]: unknown;
}

export interface StripRow {
  readonly label: string;
  readonly unit: string;
  readonly before: number | null;
  readonly after: number | null;
}

/** What the last switch changed. */
export interface Strip {
  readonly loader: string;
  readonly source: string;
  readonly target: string;
  readonly text: string;
  readonly rows: readonly StripRow[];
  /** The backend to offer, as the switch lost speed; null where it did not. Older kernels: missing. */
  readonly back?: string | null;
}

/** What a kernel's monitor is set to; null and empty where its half is too old to tell. */
export interface Setup {
  readonly settings: Settings | null;
  readonly charts: readonly ChartChoice[];
  readonly recording: Recording | null;
}

export interface Hello extends Setup {
  readonly protocol: number;
  readonly version: string;
  /** Name of the kernel's Python environment. */
  readonly environment: string;
  readonly running: boolean;
  /** Null before the first start. */
  readonly session: string | null;
  /** Version of the kernel's Bokeh. */
  readonly bokeh: string;
}

export interface Subscription extends Setup {
  /** Seconds: subscribe again before they are over. */
  readonly lease: number;
  readonly session: string | null;
  readonly running: boolean;
  readonly paused: boolean;
  /** The newest row's number. */
  readonly seq: number;
  readonly schema: Schema;
  readonly loaders: readonly LoaderState[];
  readonly events: readonly MonitorEvent[];
  readonly strip: Strip | null;
  /** The file that was asked for, where it is one; null for what runs now. */
  readonly recorded: Recorded | null;
  /** Null where the kernel's half is too old to have it. */
  readonly analysis: AnalysisNews | null;
}

export interface Frame {
  readonly session: string;
  /** Version of the schema that `values` has. */
  readonly schema: number;
  readonly seq: number;
  /** Seconds since the session began. */
  readonly time: number;
  /** Unix seconds on the kernel's host. */
  readonly sent: number;
  readonly sampled: number;
  readonly loaders: readonly LoaderState[];
  readonly events: readonly MonitorEvent[];
  readonly strip: Strip | null;
  /** Only when it changed. */
  readonly recording: Recording | null;
  readonly analysis: AnalysisNews | null;
  /** One value for each series; NaN is missing. */
  readonly values: Float32Array;
}

/** A run of rows, oldest first: `values` is row-major, one row of `schema.series.length` each. */
export interface Rows {
  readonly schema: Schema;
  readonly seq: Float64Array;
  readonly time: Float64Array;
  readonly values: Float32Array;
}

export interface History {
  readonly rows: Rows;
  readonly events: readonly MonitorEvent[];
}

export function decodeSchema(value: unknown): Schema {
  const json = object(value, 'schema');
  need(json, 'schema', 'version interval origin capacity', '', 'series loaders');
  for (const entry of json.series as unknown[]) {
    need(object(entry, 'series'), 'series', '', 'name unit');
  }
  return json as unknown as Schema;
}

function decodeLoaders(value: unknown): readonly LoaderState[] {
  for (const entry of value as unknown[]) {
    const json = object(entry, 'loader');
    const counts = 'epoch batch samples lost doubled skipped replaced';
    need(json, 'loader', counts, 'id name backend status', 'backends skips');
    object(json.decoded, 'decoded');
    if ((json.backends as unknown[]).length > 0) {
      need(object(json.knobs, 'knobs'), 'knobs', 'workers prefetch');
    }
    for (const skip of json.skips as unknown[]) {
      need(object(skip, 'skip'), 'skip', 'index', 'path reason');
    }
  }
  return value as readonly LoaderState[];
}

function decodeStrip(value: unknown): Strip | null {
  if (value === null || value === undefined) {
    return null;
  }
  const json = object(value, 'strip');
  need(json, 'strip', '', 'loader source target text', 'rows');
  return json as unknown as Strip;
}

function decodeEvents(value: unknown): readonly MonitorEvent[] {
  for (const entry of value as unknown[]) {
    need(object(entry, 'event'), 'event', 'id time', 'kind');
  }
  return value as readonly MonitorEvent[];
}

function decodeSetup(json: Readonly<Record<string, unknown>>): Setup {
  return {
    settings: decodeSettings(json.settings),
    charts: decodeCharts(json.charts),
    recording: decodeRecording(json.recording)
  };
}

export function decodeHello(content: unknown): Hello {
  const json = object(content, 'hello');
  need(json, 'hello', 'protocol', 'version environment');
  // The rest of a kernel's answer that speaks another protocol is not to be read.
  const setup = json.protocol === PROTOCOL ? decodeSetup(json) : decodeSetup({});
  return { ...(json as unknown as Hello), ...setup };
}

export function decodeSubscription(content: unknown): Subscription {
  const json = object(content, 'subscription');
  need(json, 'subscription', 'lease seq', '', 'loaders events');
  return {
    ...(json as unknown as Subscription),
    schema: decodeSchema(json.schema),
    loaders: decodeLoaders(json.loaders),
    events: decodeEvents(json.events),
    strip: decodeStrip(json.strip),
    recorded: json.recorded ? decodeRecorded(json.recorded) : null,
    analysis: decodeAnalysis(json),
    ...decodeSetup(json)
  };
}

/** The state that answers a `switch` or a `set`. */
export function decodeLoader(content: unknown): LoaderState {
  return decodeLoaders([object(content, 'reply').loader])[0]!;
}

/**
 * Decode a frame whose protocol is known to fit.
 *
 * @throws WireError when it is not of the protocol's form.
 */
export function decodeFrame(content: unknown, buffers: readonly Buffer[]): Frame {
  const json = object(content, 'frame');
  need(json, 'frame', 'schema seq time sent sampled', 'session', 'loaders events');
  const data = bytes(buffers[0], 'frame');
  if (data.byteLength % 4 !== 0) {
    throw new WireError(`frame: ${data.byteLength} bytes are no float32 values.`);
  }
  return {
    ...(json as unknown as Frame),
    loaders: decodeLoaders(json.loaders),
    events: decodeEvents(json.events),
    strip: decodeStrip(json.strip),
    recording: decodeRecording(json.recording),
    analysis: decodeAnalysis(json),
    values: new Float32Array(data)
  };
}

export function decodeHistory(content: unknown, buffers: readonly Buffer[]): History {
  const json = object(content, 'history');
  need(json, 'history', 'rows', '', 'events');
  const schema = decodeSchema(json.schema);
  const count = json.rows as number;
  const values = count * schema.series.length;
  return {
    rows: {
      schema,
      seq: floats(Float64Array, buffers[0], count, 'history: seq'),
      time: floats(Float64Array, buffers[1], count, 'history: time'),
      values: floats(Float32Array, buffers[2], values, 'history: values')
    },
    events: decodeEvents(json.events)
  };
}
