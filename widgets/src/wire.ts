/**
 * The messages between kernel and page: names, version, types and decoding
 * (docs/architecture.md; mirrors kernel_monitor/stream/wire.py).
 *
 * `tests/wire/golden` holds one example of each message, asserted from both languages.
 */

/** Grows when an older page or kernel could misread a message. */
export const PROTOCOL = 1;

export const REQUEST = 'kernel_monitor_request';
export const REPLY = 'kernel_monitor_reply';
export const FRAME = 'kernel_monitor_frame';
export const NOTICE = 'kernel_monitor_notice';

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
  readonly series: readonly Series[];
  readonly loaders: readonly { readonly id: string; readonly name: string }[];
}

export interface Backend {
  readonly name: string;
  readonly available: boolean;
  /** Why it is not available; null when it is. */
  readonly reason: string | null;
  /** What a person is to be asked before it is switched to; null where there is nothing to ask. */
  readonly confirm: string | null;
}

/** What can be changed while a loader runs (mirrors `KnobsState` of kernel_monitor/loaders/state.py). */
export interface Knobs {
  /** Processes that load for `torchvision`. */
  readonly workers: number;
  /** Batches in flight: per worker for `torchvision`, in all for DALI. */
  readonly prefetch: number;
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
}

export interface Hello {
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

export interface Subscription {
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

export type Buffer = ArrayBuffer | ArrayBufferView;

/** A message that is not of the protocol's form. */
export class WireError extends Error {
  override name = 'WireError';
}

type Json = Record<string, unknown>;

function object(value: unknown, what: string): Json {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new WireError(`${what} is not an object.`);
  }
  return value as Json;
}

function need(json: Json, what: string, numbers: string, texts = '', lists = ''): void {
  const check = (names: string, fits: (value: unknown) => boolean, kind: string): void => {
    for (const name of names.split(' ')) {
      if (name !== '' && !fits(json[name])) {
        throw new WireError(`${what}: ${name} is not ${kind}.`);
      }
    }
  };
  check(numbers, value => typeof value === 'number', 'a number');
  check(texts, value => typeof value === 'string', 'text');
  check(lists, value => Array.isArray(value), 'a list');
}

/** The bytes of a buffer, copied so that typed arrays of any item size can start at their first byte. */
function bytes(buffer: Buffer | undefined, what: string): ArrayBuffer {
  if (buffer === undefined) {
    throw new WireError(`${what}: a buffer is missing.`);
  }
  if (buffer instanceof ArrayBuffer) {
    return buffer;
  }
  const start = buffer.byteOffset;
  return buffer.buffer.slice(start, start + buffer.byteLength) as ArrayBuffer;
}

function floats<T>(
  type: { new (data: ArrayBuffer): T; readonly BYTES_PER_ELEMENT: number },
  buffer: Buffer | undefined,
  count: number,
  what: string
): T {
  const data = bytes(buffer, what);
  if (data.byteLength !== count * type.BYTES_PER_ELEMENT) {
    throw new WireError(
      `${what}: ${data.byteLength} bytes where ${count * type.BYTES_PER_ELEMENT} are due.`
    );
  }
  return new type(data);
}

export function decodeText(buffer: Buffer | undefined, what: string): string {
  return new TextDecoder().decode(bytes(buffer, what));
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
    need(object(json.knobs, 'knobs'), 'knobs', 'workers prefetch');
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

export function decodeHello(content: unknown): Hello {
  const json = object(content, 'hello');
  need(json, 'hello', 'protocol', 'version environment');
  return json as unknown as Hello;
}

export function decodeSubscription(content: unknown): Subscription {
  const json = object(content, 'subscription');
  need(json, 'subscription', 'lease seq', '', 'loaders events');
  return {
    ...(json as unknown as Subscription),
    schema: decodeSchema(json.schema),
    loaders: decodeLoaders(json.loaders),
    events: decodeEvents(json.events),
    strip: decodeStrip(json.strip)
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
