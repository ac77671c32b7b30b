/**
 * A kernel that is reached by the widget protocol alone (its Python half: kernel_monitor/stream/widget_pages.py): requests
 * are custom messages, which the kernel reads between two cells only; what it sends arrives while a cell runs, too.
 *
 * While a cell runs, requests that only read are answered here, from what the kernel has sent: replies to earlier
 * requests, replies that it sends unasked (`openings`), and the frames since then. Others are refused with the reason,
 * and not sent: a switch that arrives after the training is of no use.
 */

import {
  uuid,
  type FutureLike,
  type KernelLike,
  type MessageLike,
  type SignalLike
} from './channel.js';
import { Emitter } from './emitter.js';
import { bytes, type Buffer } from './message_check.js';
import { FRAME, NOTICE, REPLY, REQUEST } from './protocol.js';
import type * as protocol from './protocol.js';

/** The part of anywidget's model that is used. */
export interface WidgetModel {
  send(content: unknown): void;
  on(event: 'msg:custom', callback: (message: unknown, buffers?: Buffer[]) => void): void;
  off(event: 'msg:custom', callback: (message: unknown, buffers?: Buffer[]) => void): void;
}

/** Where requests go while a cell runs, if the user has allowed it (`monitor.configure(http=True)`). */
export interface HttpAddress {
  readonly url: string;
  readonly token: string;
}

interface Incoming {
  readonly type: string;
  readonly content: Record<string, unknown>;
  /** The widget, by which a request over HTTP names it. */
  readonly page: string;
  /** The request that this replies to; or, for a reply that nobody asked for, the command that it is of. */
  readonly id?: string;
  readonly command?: string;
  /** A cell runs. */
  readonly busy: boolean;
  readonly http: HttpAddress | null;
}

interface Reply {
  readonly content: Record<string, unknown>;
  readonly buffers: readonly Buffer[];
}

interface Request {
  readonly command: string;
  readonly args: Record<string, unknown>;
  readonly future: FutureLike;
}

const READS: ReadonlySet<string> = new Set([
  'hello',
  'subscribe',
  'history',
  'document',
  'bokehjs'
]);
/** Fields of a frame that are sent when they have changed. */
const FINDINGS = ['verdict', 'offers', 'diagnosing', 'profiling', 'ranks', 'main', 'recording'];
/** Without a message for so long it is not known whether a cell still runs: requests are sent, and wait. */
const SILENT_MS = 5000;
/** A read that the kernel has not answered after this is answered from what it sent earlier. */
const PATIENCE_MS = 1000;
const READ_ONLY =
  'A cell is running, and until it ends this front end has no way to the kernel. Nothing was changed. ' +
  'From a terminal on the kernel’s machine: kernel-monitor switch dali-cpu';

class Signal<A> implements SignalLike<A> {
  private readonly slots = new Map<(sender: unknown, args: A) => void, () => void>();
  private readonly emitter = new Emitter<A>();

  connect(slot: (sender: unknown, args: A) => void): boolean {
    this.slots.set(
      slot,
      this.emitter.on(args => slot(null, args))
    );
    return true;
  }

  disconnect(slot: (sender: unknown, args: A) => void): boolean {
    this.slots.get(slot)?.();
    return this.slots.delete(slot);
  }

  emit(args: A): void {
    this.emitter.emit(args);
  }
}

export class WidgetKernel implements KernelLike {
  readonly id = 'widget';
  readonly clientId = uuid();
  readonly username = '';
  readonly connectionStatus = 'connected';
  readonly iopubMessage = new Signal<MessageLike>();
  readonly statusChanged = new Signal<string>();
  readonly connectionStatusChanged = new Signal<string>();
  /** `http` has changed. */
  readonly httpChanged = new Emitter<void>();
  status = 'idle';
  isDisposed = false;
  http: HttpAddress | null = null;

  private readonly waiting = new Map<string, Request>();
  /** The newest reply to each command that reads, and the frames after the rows of `history`. */
  private readonly known = new Map<string, Reply>();
  private frames: { readonly content: protocol.Frame; readonly values: ArrayBuffer }[] = [];
  private heard = -Infinity;
  private page = '';
  private failedUrl: string | null = null;

  constructor(private readonly model: WidgetModel) {
    model.on('msg:custom', this.onMessage);
  }

  dispose(): void {
    this.isDisposed = true;
    this.model.off('msg:custom', this.onMessage);
    this.waiting.clear();
  }

  sendControlMessage(message: never): FutureLike {
    const { header, content } = message as {
      header: { msg_type: string };
      content: { command: string; args: Record<string, unknown> };
    };
    const future: FutureLike = {
      onReply: () => undefined,
      onIOPub: () => undefined,
      done: new Promise(() => undefined),
      dispose: () => undefined
    };
    if (header.msg_type !== REQUEST) {
      // Whether the package is loaded: it made this widget.
      answer(future, { content: { status: 'ok', comms: { '': {} } }, buffers: [] });
      return future;
    }
    const request = { command: content.command, args: content.args, future };
    if (this.http !== null) {
      void this.fetch(this.http, content, request);
    } else {
      this.send(content, request);
    }
    return future;
  }

  /** A cell runs, as far as the kernel's last message says. */
  private get cellRuns(): boolean {
    return this.status === 'busy' && performance.now() - this.heard < SILENT_MS;
  }

  private send(content: unknown, request: Request): void {
    const { command, future } = request;
    const reads = READS.has(command) && request.args.recorded === undefined;
    const local = reads ? this.local(request) : null;
    if (this.cellRuns && local !== null) {
      answer(future, local);
      return;
    }
    if (this.cellRuns && command === 'unsubscribe') {
      answer(future, { content: { status: 'ok' }, buffers: [] });
      return;
    }
    if (this.cellRuns && !reads) {
      const refused = { status: 'error', error: 'CellRuns', message: READ_ONLY };
      answer(future, { content: refused, buffers: [] });
      return;
    }
    const id = uuid();
    this.waiting.set(id, request);
    future.dispose = () => void this.waiting.delete(id);
    this.model.send({ type: REQUEST, id, content });
    if (reads) {
      setTimeout(() => this.answerLocally(id), PATIENCE_MS);
    }
  }

  private async fetch(
    { url, token }: HttpAddress,
    content: unknown,
    request: Request
  ): Promise<void> {
    try {
      const response = await fetch(url, {
        method: 'POST',
        headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' },
        body: JSON.stringify({ ...(content as object), page: this.page }),
        credentials: 'omit',
        cache: 'no-store'
      });
      if (!response.ok) {
        throw new Error(`${url} answered ${response.status}`);
      }
      const reply = unpack(await response.arrayBuffer());
      this.learn(request.command, reply);
      void request.future.onReply(reply as never);
    } catch (error) {
      // The page's browser is on another machine than the kernel, or the server has ended.
      console.warn(
        'kernel_monitor: no HTTP to the kernel; requests go by the widget again.',
        error
      );
      this.setHttp(null, url);
      this.send(content, request);
    }
  }

  private setHttp(next: HttpAddress | null, failed = this.failedUrl): void {
    this.failedUrl = failed;
    const usable = next !== null && next.url !== failed ? next : null;
    if (usable?.url !== this.http?.url) {
      this.http = usable;
      this.httpChanged.emit();
    }
  }

  private readonly onMessage = (message: unknown, buffers: Buffer[] = []): void => {
    const { type, content, page, id, command, busy, http } = message as Incoming;
    if (typeof type !== 'string' || typeof content !== 'object') {
      return;
    }
    this.heard = performance.now();
    this.page = page;
    this.setHttp(http ?? null);
    if (type === REPLY) {
      const request = id === undefined ? undefined : this.waiting.get(id);
      this.learn(command ?? request?.command ?? '', { content, buffers }, request?.args);
      if (id !== undefined && request !== undefined) {
        this.waiting.delete(id);
        void request.future.onReply({ content, buffers } as never);
      }
      [...this.waiting.keys()].forEach(
        waiting => command !== undefined && this.answerLocally(waiting)
      );
    } else {
      if (type === FRAME) {
        this.takeFrame(content as unknown as protocol.Frame, buffers);
      } else if (type === NOTICE) {
        if (content.session !== this.schema.session) {
          this.forget();
        }
        this.merge('subscribe', content, ['running', 'session', 'settings', 'charts', 'recording']);
      }
      const header = { msg_id: '', msg_type: type, session: '' };
      this.iopubMessage.emit({ header, parent_header: {}, content, buffers });
    }
    const status = busy ? 'busy' : 'idle';
    if (status !== this.status) {
      this.status = status;
      this.statusChanged.emit(status);
    }
  };

  /** Keep a reply that later requests may be answered with. */
  private learn(command: string, reply: Reply, args: Record<string, unknown> = {}): void {
    const whole = command !== 'history' || args.since === undefined || args.since === 0;
    if (
      !READS.has(command) ||
      args.recorded !== undefined ||
      reply.content.status !== 'ok' ||
      !whole
    ) {
      return;
    }
    this.known.set(command, reply);
    if (command === 'history') {
      const last = lastOf(reply.buffers[0]);
      this.frames = this.frames.filter(({ content }) => content.seq > last);
    }
  }

  private takeFrame(content: protocol.Frame, buffers: readonly Buffer[]): void {
    const { session, schema } = this.schema;
    if (content.session !== session || content.schema !== schema?.version) {
      this.forget();
      return;
    }
    const values = bytes(buffers[0], 'Frame');
    const width = 4 * schema.series.length;
    [...(content.before ?? []), [content.seq, content.time]].forEach(([seq, time], k) => {
      const row = { ...content, seq: seq!, time: time! };
      this.frames.push({ content: row, values: values.slice(k * width, (k + 1) * width) });
    });
    if (this.frames.length > 2 * schema.capacity) {
      this.frames = this.frames.slice(-schema.capacity);
    }
    this.merge('subscribe', content, [...FINDINGS, 'loaders', 'strip', 'seq']);
    const { events = [] } = this.known.get('subscribe')!.content as { events?: unknown[] };
    if (content.events.length > 0) {
      this.merge('subscribe', { events: [...events, ...content.events] }, ['events']);
    }
  }

  /** Another session or schema: what is known is of the old one. */
  private forget(): void {
    ['subscribe', 'history', 'document'].forEach(command => this.known.delete(command));
    this.frames = [];
  }

  private get schema(): Partial<Pick<protocol.SubscribeReply, 'session' | 'schema'>> {
    return this.known.get('subscribe')?.content ?? {};
  }

  private merge(command: string, from: object, fields: readonly string[]): void {
    const known = this.known.get(command);
    if (known !== undefined) {
      const changed = Object.entries(from).filter(
        ([field, value]) => value !== undefined && fields.includes(field)
      );
      this.known.set(command, {
        ...known,
        content: { ...known.content, ...Object.fromEntries(changed) }
      });
    }
  }

  private answerLocally(id: string): void {
    const request = this.waiting.get(id);
    if (
      request === undefined ||
      !READS.has(request.command) ||
      request.args.recorded !== undefined
    ) {
      return;
    }
    const reply = this.local(request);
    if (reply !== null) {
      this.waiting.delete(id);
      answer(request.future, reply);
    }
  }

  /** What is known here of a request's answer; null if nothing is. */
  private local({ command, args }: Request): Reply | null {
    const reply = this.known.get(command) ?? null;
    const { schema } = this.schema;
    if (reply === null || command === 'hello' || command === 'bokehjs') {
      return reply;
    }
    if (command === 'document') {
      return reply.content.schema === schema?.version ? reply : null;
    }
    const history = this.known.get('history');
    const rows = history?.content as unknown as protocol.HistoryReply | undefined;
    if (rows?.schema.version !== schema?.version || history === undefined) {
      return null;
    }
    return command === 'history' ? this.history(history, Number(args.since)) : reply;
  }

  private history({ content, buffers }: Reply, since: number): Reply {
    const { events = [] } = this.known.get('subscribe')!.content;
    const width = this.schema.schema!.series.length;
    const seqs = new Float64Array(bytes(buffers[0], 'history'));
    const from = seqs.findIndex(seq => seq > since);
    const first = from < 0 ? seqs.length : from;
    const later = this.frames.filter(frame => frame.content.seq > since);
    const parts = [
      [bytes(buffers[0], 'history').slice(8 * first), Float64Array.from(later, f => f.content.seq)],
      [
        bytes(buffers[1], 'history').slice(8 * first),
        Float64Array.from(later, f => f.content.time)
      ],
      [bytes(buffers[2], 'history').slice(4 * width * first), ...later.map(f => f.values)]
    ];
    const rows = seqs.length - first + later.length;
    return { content: { ...content, rows, events }, buffers: parts.map(joined) };
  }
}

function answer(future: FutureLike, reply: Reply): void {
  // Not at once: the caller sets its handlers after the call.
  setTimeout(() => void future.onReply(reply as never), 0);
}

function lastOf(buffer: Buffer | undefined): number {
  const seqs = new Float64Array(bytes(buffer, 'history'));
  return seqs.length === 0 ? 0 : seqs[seqs.length - 1]!;
}

function joined(parts: readonly (ArrayBuffer | Float64Array)[]): ArrayBuffer {
  const all = parts.map(part => new Uint8Array(part instanceof ArrayBuffer ? part : part.buffer));
  const out = new Uint8Array(all.reduce((sum, part) => sum + part.byteLength, 0));
  let at = 0;
  for (const part of all) {
    out.set(part, at);
    at += part.byteLength;
  }
  return out.buffer;
}

/** A reply over HTTP: `<u32 length of the JSON><JSON {content, buffers: [length, …]}><buffers>`, little-endian. */
export function unpack(data: ArrayBuffer): Reply {
  const length = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(data.slice(4, 4 + length))) as {
    content: Record<string, unknown>;
    buffers: number[];
  };
  let at = 4 + length;
  const buffers = head.buffers.map(size => data.slice(at, (at += size)));
  return { content: head.content, buffers };
}
