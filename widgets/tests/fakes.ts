/** Stand-ins at the edges: a kernel connection, and a Bokeh document. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { BokehDocument, BokehModel, Columns } from '../src/charts/bokeh_api.js';
import type { FutureLike, KernelLike, MessageLike, SignalLike } from '../src/stream/channel.js';
import type { Buffer, Rows, Schema } from '../src/stream/page_messages.js';
import { FRAME, NOTICE } from '../src/stream/protocol.js';

export interface Golden {
  msg_type: string;
  content: Record<string, unknown>;
  buffers: DataView[];
}

/** A golden message, with its buffers as JupyterLab gives them: views that begin anywhere. */
export function golden(name: string): Golden {
  const path = join(import.meta.dirname, '../../tests/wire/golden', `${name}.json`);
  const message = JSON.parse(readFileSync(path, 'utf8')) as {
    msg_type: string;
    content: Record<string, unknown>;
    buffers: string[];
  };
  const buffers = message.buffers.map(text => {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const shifted = new Uint8Array(bytes.length + 3);
    shifted.set(bytes, 3);
    return new DataView(shifted.buffer, 3, bytes.length);
  });
  return { ...message, buffers };
}

class FakeSignal<A> implements SignalLike<A> {
  readonly slots = new Set<(sender: unknown, args: A) => void>();
  connect(slot: (sender: unknown, args: A) => void): boolean {
    this.slots.add(slot);
    return true;
  }
  disconnect(slot: (sender: unknown, args: A) => void): boolean {
    return this.slots.delete(slot);
  }
  emit(args: A): void {
    [...this.slots].forEach(slot => slot(null, args));
  }
}

export interface Request {
  command: string;
  args: Record<string, unknown>;
  message: Record<string, Record<string, unknown>>;
  future: FutureLike;
  reply(content: Record<string, unknown>, buffers?: Buffer[]): void;
  idle(): void;
}

/** A kernel that answers as it is told: by `answers` at once, or by hand through `requests`. */
export class FakeKernel implements KernelLike {
  readonly id = 'kernel-1';
  readonly clientId = 'page-1';
  readonly username = 'u';
  status = 'idle';
  connectionStatus = 'connected';
  isDisposed = false;
  readonly iopubMessage = new FakeSignal<MessageLike>();
  readonly statusChanged = new FakeSignal<string>();
  readonly connectionStatusChanged = new FakeSignal<string>();
  readonly requests: Request[] = [];
  answers: Record<string, (request: Request) => void> = {};
  /** Whether the package is loaded. */
  loaded = true;

  sendControlMessage(message: never): FutureLike {
    if (this.status === 'dead') {
      throw new Error('Kernel is dead');
    }
    const future: FutureLike = {
      onReply: () => undefined,
      onIOPub: () => undefined,
      done: new Promise(() => undefined),
      dispose: () => undefined
    };
    const request: Request = {
      ...(message as { content: { command: string; args: Record<string, unknown> } }).content,
      message,
      future,
      reply: (content, buffers = []) => {
        void future.onReply({ content: { status: 'ok', ...content }, buffers } as never);
      },
      idle: () => {
        const status = { header: { msg_type: 'status' }, content: { execution_state: 'idle' } };
        void future.onIOPub(status as never);
      }
    };
    const { header } = message as { header: { msg_type: string } };
    if (header.msg_type === 'comm_info_request') {
      const comms = this.loaded ? { '1': { target_name: 'kernel_monitor' } } : {};
      queueMicrotask(() => request.reply({ comms }));
      return future;
    }
    this.requests.push(request);
    queueMicrotask(() => this.answers[request.command]?.(request));
    return future;
  }

  commands(): string[] {
    return this.requests.map(request => request.command);
  }

  publish(msg_type: string, content: unknown, buffers: Buffer[] = []): void {
    const header = { msg_id: '', msg_type, session: '' };
    this.iopubMessage.emit({ header, parent_header: {}, content, buffers });
  }

  setStatus(status: string): void {
    this.status = status;
    this.statusChanged.emit(status);
  }
}

const NO_FINDINGS = { verdict: null, offers: [], diagnosing: null, profiling: null };

/** The monitor of a kernel: a session whose rows are `value(seq, column)`. */
export class FakeMonitor {
  readonly kernel = new FakeKernel();
  session: string | null = 's1';
  running = true;
  paused = false;
  seq = 20;
  oldest = 1;
  version = 3;

  constructor(readonly schema: Schema = makeSchema()) {
    this.kernel.answers = {
      hello: request => request.reply(this.hello()),
      subscribe: request =>
        request.reply({
          ...golden('reply-subscribe').content,
          ...this.hello(),
          lease: 20,
          seq: this.seq,
          paused: this.paused,
          schema: { ...this.schema, version: this.version },
          loaders: [],
          events: [],
          strip: null,
          recorded: null,
          ...NO_FINDINGS
        }),
      unsubscribe: request => request.reply({}),
      history: request => {
        const rows = this.rows(Math.max(Number(request.args.since) + 1, this.oldest), this.seq);
        request.reply({ schema: rows.schema, rows: rows.seq.length, events: [], charts: [] }, [
          rows.seq,
          rows.time,
          rows.values
        ]);
      }
    };
  }

  hello(): Record<string, unknown> {
    const { session, running } = this;
    return { ...golden('reply-hello').content, session, running };
  }

  rows(first: number, last: number): Rows {
    return makeRows({ ...this.schema, version: this.version }, range(first, last));
  }

  /** Measure a row; `send` it unless it gets lost. */
  frame({
    send = true,
    rows = 1,
    ...changes
  }: { send?: boolean; rows?: number; [field: string]: unknown } = {}): void {
    this.seq += rows;
    if (send) {
      const first = this.seq - rows + 1;
      const { values } = this.rows(first, this.seq);
      const content = {
        ...golden('frame').content,
        session: this.session,
        schema: this.version,
        seq: this.seq,
        time: this.seq / 10,
        sampled: Date.now() / 1000 - 0.02,
        loaders: [],
        events: [],
        strip: null,
        recording: undefined,
        before: range(first, this.seq - 1).map(seq => [seq, seq / 10]),
        ...changes
      };
      this.kernel.publish(FRAME, content, [values]);
    }
  }

  notice(kind: string): void {
    this.kernel.publish(NOTICE, { ...this.hello(), kind });
  }
}

export function range(first: number, last: number): number[] {
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i);
}

export function makeSchema(series = ['cpu/0/busy', 'cpu/1/busy', 'loader/l/wait']): Schema {
  return {
    version: 3,
    interval: 0.1,
    origin: 1_790_000_000,
    capacity: 600,
    series: series.map(name => ({ name, unit: '%' })),
    cpus: [],
    gpus: [],
    gpu_reason: null,
    loaders: [{ id: 'l', name: 'train', phased: false }],
    host: {},
    charts: []
  };
}

/** Rows of the given numbers, a tenth of a second apart; column k of row n holds n + k, as far as it is a per cent. */
export function makeRows(
  schema: Schema,
  seqs: readonly number[],
  value: (seq: number, column: number) => number = (seq, column) => (seq + column) % 101,
  time: (seq: number) => number = seq => seq / 10 + 0.05
): Rows {
  const width = schema.series.length;
  const values = new Float32Array(seqs.length * width);
  seqs.forEach((seq, i) => {
    for (let k = 0; k < width; k += 1) {
      values[i * width + k] = value(seq, k);
    }
  });
  return { schema, seq: Float64Array.from(seqs), time: Float64Array.from(seqs, time), values };
}

/** A model with just enough of Bokeh's behaviour to be fed. */
export class FakeModel implements BokehModel {
  readonly patches: number[][] = [];
  readonly streams: { data: Columns; rollover: number | undefined }[] = [];
  data: Columns = {};
  readonly patching = { emit: (indices: number[]) => void this.patches.push(indices) };

  constructor(
    readonly type: string,
    readonly name: string | null,
    readonly tags: readonly unknown[] = [],
    readonly attributes: Record<string, unknown> = {}
  ) {}

  setv(values: Record<string, unknown>): void {
    Object.assign(this.attributes, values);
  }

  stream(data: Columns, rollover?: number): void {
    this.streams.push({ data, rollover });
    for (const [name, column] of Object.entries(data)) {
      const all = [...Array.from(this.data[name] ?? []), ...Array.from(column)];
      this.data[name] = rollover === undefined ? all : all.slice(-rollover);
    }
  }
}

export function fakeDocument(models: readonly FakeModel[]): BokehDocument {
  return {
    all_models: models,
    get_model_by_name: name => models.find(model => model.name === name) ?? null,
    clear: () => undefined
  };
}
