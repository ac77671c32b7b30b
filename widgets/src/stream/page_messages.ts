/** Messages of the kernel as the page uses them, with their buffers, and what the page asks it to change. */

import { decode, floats, object, WireError, type Buffer } from './message_check.js';
import { PROTOCOL } from './protocol.js';
import type * as protocol from './protocol.js';

export { WireError, type Buffer };
export type {
  ChartState as ChartChoice,
  EngineState as Backend,
  Event as MonitorEvent,
  KnobsState as Knobs,
  LoaderState,
  RecordingState as Recording,
  SchemaState as Schema,
  SettingsState as Settings,
  Skip,
  Strip,
  StripRow,
  SubscribeReply as Subscription
} from './protocol.js';

/** The fields of `hello` that kernels of every protocol send. */
export type Hello = Pick<protocol.HelloReply, 'protocol' | 'version' | 'environment'>;

/** The settings for `configure` to change; those left out stay as they are. */
export type Changes = Partial<
  Pick<protocol.SettingsState, 'interval' | 'history' | 'charts' | 'unfolded'>
> & {
  /** True to record, false not to; or the folder to record to (empty: the usual one). */
  readonly record?: boolean | string;
  /** Per hour, with its currency or without (`2.50`, `2.50 €`); an empty text takes it away. */
  readonly price?: number | string;
};

export interface Frame extends protocol.Frame {
  /** One value for each series; NaN is missing. */
  readonly values: Float32Array;
}

/** A run of rows, oldest first: `values` is row-major, one row of `schema.series.length` each. */
export interface Rows {
  readonly schema: protocol.SchemaState;
  readonly seq: Float64Array;
  readonly time: Float64Array;
  readonly values: Float32Array;
}

export interface History {
  readonly rows: Rows;
  readonly events: readonly protocol.Event[];
}

export function decodeHello(content: unknown): Hello {
  const json = object(content, 'HelloReply');
  const isOther = typeof json.protocol === 'number' && json.protocol !== PROTOCOL;
  return isOther ? (json as unknown as Hello) : decode('HelloReply', json);
}

/**
 * @returns the frame; null where it is of another protocol, session or schema
 * @throws WireError when it is not of the protocol's form
 */
export function frameOf(
  { content, buffers = [] }: { readonly content: unknown; readonly buffers?: readonly Buffer[] },
  session: string | null,
  schema: protocol.SchemaState
): Frame | null {
  if (object(content, 'Frame').protocol !== PROTOCOL) {
    return null;
  }
  const frame = decode('Frame', content);
  if (frame.session !== session || frame.schema !== schema.version) {
    return null;
  }
  const count = schema.series.length * (1 + (frame.before?.length ?? 0));
  return { ...frame, values: floats(Float32Array, buffers[0], count, 'Frame') };
}

export function decodeHistory(content: unknown, buffers: readonly Buffer[]): History {
  const { schema, rows: count, events } = decode('HistoryReply', content);
  return {
    rows: {
      schema,
      seq: floats(Float64Array, buffers[0], count, 'HistoryReply: seq'),
      time: floats(Float64Array, buffers[1], count, 'HistoryReply: time'),
      values: floats(Float32Array, buffers[2], count * schema.series.length, 'HistoryReply: values')
    },
    events
  };
}
