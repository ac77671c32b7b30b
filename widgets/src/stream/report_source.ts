/**
 * `ReportSource`: a session that is embedded in the page, as a report's file has it.
 *
 * The table's columns stand one after the other in one deflated block (kernel_monitor/report/embedded.py). Those that
 * only heatmaps show are whole per cent, a byte each; the others, and the rows' times, are numbers whose bytes of equal
 * weight stand side by side.
 */

import type { ChartDocument } from './commands.js';
import { Emitter } from './emitter.js';
import { decode, WireError } from './message_check.js';
import type { History, MonitorEvent, Rows, Schema } from './page_messages.js';
import type { EmbeddedSession } from './protocol.js';
import type { ChartSource } from './source.js';

/** A byte that stands for no value. */
const MISSING = 255;

/** @throws WireError when it is not of the form that a report has */
export function decodeSession(text: string): EmbeddedSession {
  return decode('EmbeddedSession', JSON.parse(text));
}

export class ReportSource implements ChartSource {
  readonly schema: Schema;
  readonly events: readonly MonitorEvent[];
  readonly opened = new Emitter<Schema>();
  readonly arrived = new Emitter<Rows>();
  readonly changed = new Emitter<void>();
  private readonly table: Promise<Rows>;

  constructor(private readonly session: EmbeddedSession) {
    this.schema = session.schema;
    this.events = session.events;
    this.table = readTable(session);
  }

  /** Give those that listen the session's rows. */
  async open(): Promise<void> {
    this.opened.emit(this.schema);
    this.arrived.emit(await this.table);
  }

  refresh(): void {
    void this.open();
  }

  async history(): Promise<History> {
    return { rows: await this.table, events: this.events };
  }

  document(): Promise<ChartDocument> {
    const { schema, bokeh, item } = this.session;
    return Promise.resolve({ schema: schema.version, bokeh, item });
  }

  /** Not asked for: the page has started it itself. */
  bokehjs(): Promise<never> {
    return Promise.reject(new Error('The file holds no BokehJS of the version of its charts.'));
  }
}

async function readTable({ schema, rows, percent, table }: EmbeddedSession): Promise<Rows> {
  const data = await inflate(Uint8Array.from(atob(table), letter => letter.charCodeAt(0)));
  const width = schema.series.length;
  if (data.length !== percent.reduce((sum, whole) => sum + rows * (whole ? 1 : 4), rows * 8)) {
    throw new WireError(`The file's table of ${rows} rows has ${data.length} bytes.`);
  }
  const time = new Float64Array(gather(data.subarray(0, rows * 8), rows).buffer);
  const values = new Float32Array(rows * width);
  let from = rows * 8;
  for (let column = 0; column < width; column += 1) {
    const end = from + rows * (percent[column] ? 1 : 4);
    const part = data.subarray(from, end);
    const numbers = percent[column] ? part : new Float32Array(gather(part, rows).buffer);
    for (let row = 0, at = column; row < rows; row += 1, at += width) {
      const value = numbers[row]!;
      values[at] = percent[column] && value === MISSING ? NaN : value;
    }
    from = end;
  }
  return { schema, seq: Float64Array.from({ length: rows }, (_, row) => row + 1), time, values };
}

/** The bytes of each of `count` numbers together, of all lowest bytes, then all next ones, and so on. */
function gather(planes: Uint8Array, count: number): Uint8Array<ArrayBuffer> {
  const width = planes.length / Math.max(count, 1);
  const numbers = new Uint8Array(planes.length);
  for (let plane = 0, from = 0; plane < width; plane += 1) {
    for (let at = plane; at < numbers.length; at += width, from += 1) {
      numbers[at] = planes[from]!;
    }
  }
  return numbers;
}

async function inflate(data: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
