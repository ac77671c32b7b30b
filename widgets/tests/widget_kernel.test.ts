import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { KernelSource } from '../src/stream/kernel_source.js';
import type { Buffer } from '../src/stream/page_messages.js';
import { FRAME, REPLY } from '../src/stream/protocol.js';
import { unpack, WidgetKernel, type WidgetModel } from '../src/stream/widget_kernel.js';
import { FakeMonitor, golden } from './fakes.js';
import { after } from './seen.js';

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

type Listener = (message: unknown, buffers?: Buffer[]) => void;
interface Sent {
  id: string;
  content: { command: string; args: Record<string, unknown> };
}

/** A widget's model, and the kernel's half behind it, which reads no request while a cell runs. */
class FakeWidget implements WidgetModel {
  readonly sent: Sent[] = [];
  readonly monitor = new FakeMonitor();
  readonly kernel: WidgetKernel;
  readonly source: KernelSource;
  readonly seqs: number[] = [];
  busy = false;
  http: { url: string; token: string } | null = null;
  private readonly listeners = new Set<Listener>();

  constructor() {
    const document = golden('reply-document');
    this.monitor.kernel.answers.document = request =>
      request.reply({ ...document.content, schema: this.monitor.version }, document.buffers);
    this.monitor.kernel.iopubMessage.connect((_, { content, buffers }) => {
      this.emit({ type: FRAME, content }, buffers);
    });
    this.kernel = new WidgetKernel(this);
    this.source = new KernelSource(this.kernel, { loaded: true });
    this.source.arrived.on(({ seq }) => this.seqs.push(...seq));
  }

  send(message: unknown): void {
    this.sent.push(message as Sent);
    if (!this.busy) {
      const { id, content } = message as Sent;
      queueMicrotask(() => this.reply(content.command, { id }, content.args));
    }
  }

  on(_: string, listener: Listener): void {
    this.listeners.add(listener);
  }

  off(_: string, listener: Listener): void {
    this.listeners.delete(listener);
  }

  /** The opening, as the kernel sends it unasked. */
  open(): void {
    for (const command of ['hello', 'subscribe', 'history', 'document']) {
      this.reply(command, { command }, { since: 0 });
    }
  }

  private reply(command: string, to: object, args: Record<string, unknown>): void {
    this.monitor.kernel.answers[command]?.({
      args,
      reply: (content: object, buffers: Buffer[] = []) => {
        this.emit({ type: REPLY, content: { status: 'ok', ...content }, ...to }, buffers);
      }
    } as never);
  }

  private emit(message: object, buffers?: Buffer[]): void {
    const { busy, http } = this;
    this.listeners.forEach(take => take({ page: 'p', busy, http, ...message }, buffers));
  }
}

const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i + 1);

describe('a kernel behind a widget', () => {
  it('is asked by custom messages between two cells', async () => {
    const widget = new FakeWidget();
    widget.source.setVisible(true);
    await after(10);
    expect(widget.sent.map(({ content }) => content.command)).toEqual([
      ...['hello', 'subscribe', 'document', 'history']
    ]);
    widget.monitor.frame();
    expect(widget.source.connection.state).toBe('running');
    expect(widget.seqs).toEqual(upTo(21));
  });

  it('is shown by what it sends, to a page that came while a cell ran', async () => {
    const widget = new FakeWidget();
    widget.busy = true;
    widget.source.setVisible(true);
    await after(4000);
    expect(widget.source.connection.state).toBe('connecting');
    widget.open();
    await after(10);
    widget.monitor.frame();
    widget.monitor.frame();
    expect(widget.source).toMatchObject({ busy: true, connection: { state: 'running' } });
    expect(widget.seqs).toEqual(upTo(22));
    await expect(widget.source.document()).resolves.toMatchObject({ schema: 3 });
    // Out of sight and back: nothing is asked, and nothing is missing.
    const asked = widget.sent.length;
    widget.source.setVisible(false);
    widget.monitor.frame();
    widget.source.setVisible(true);
    await after(2000);
    widget.monitor.frame();
    expect(widget.sent).toHaveLength(asked);
    expect([...new Set(widget.seqs)]).toEqual(upTo(24));
    expect(widget.source.stats).toMatchObject({ missed: 0, outstanding: 0, gone: 0 });
  });

  it('refuses a change while a cell runs at once, and does not send it for later', async () => {
    const widget = new FakeWidget();
    widget.source.setVisible(true);
    await after(10);
    widget.busy = true;
    widget.monitor.frame();
    const asked = widget.sent.length;
    const refused = expect(widget.source.switchTo('l', 'dali-cpu')).rejects;
    const said = refused.toThrow(/A cell is running.*kernel-monitor switch dali-cpu/);
    await after(10);
    await said;
    expect(widget.sent).toHaveLength(asked);
    widget.busy = false;
    widget.monitor.frame();
    void widget.source.mark('m');
    expect(widget.sent.at(-1)?.content.command).toBe('mark');
  });

  it('waits for a new opening when the schema has changed', async () => {
    const widget = new FakeWidget();
    widget.busy = true;
    widget.open();
    widget.source.setVisible(true);
    await after(10);
    widget.monitor.version += 1;
    widget.monitor.frame();
    await after(500);
    widget.open();
    await after(1500);
    widget.monitor.frame();
    expect(widget.source.schema?.version).toBe(4);
    expect(widget.source.connection.state).toBe('running');
    expect(widget.seqs.at(-1)).toBe(22);
  });

  it('is asked over HTTP where that is allowed, and again by the widget where it fails', async () => {
    const widget = new FakeWidget();
    widget.source.setVisible(true);
    await after(10);
    const head = new TextEncoder().encode('{"content": {"status": "ok"}, "buffers": []}');
    const body = new Uint8Array([head.length, 0, 0, 0, ...head]).buffer;
    const fetched = vi.fn(() => Promise.resolve(new Response(body)));
    vi.stubGlobal('fetch', fetched);
    widget.busy = true;
    widget.http = { url: 'http://127.0.0.1:9/kernel-monitor', token: 't' };
    widget.monitor.frame();
    await widget.source.mark('by http');
    const [url, init] = fetched.mock.lastCall as unknown as [string, RequestInit];
    expect(url).toBe(widget.http.url);
    expect(init.headers).toMatchObject({ Authorization: 'Bearer t' });
    expect(JSON.parse(init.body as string)).toMatchObject({ command: 'mark', page: 'p' });
    fetched.mockRejectedValue(new TypeError('Failed to fetch'));
    vi.spyOn(console, 'warn').mockImplementation(() => undefined);
    const failed = expect(widget.source.mark('again')).rejects.toThrow('A cell is running');
    await after(10);
    await failed;
    widget.monitor.frame();
    expect(widget.kernel.http).toBeNull();
  });
});

it('unpacks a reply over HTTP', () => {
  const head = new TextEncoder().encode('{"content": {"a": 1}, "buffers": [2, 1]}');
  const { content, buffers } = unpack(
    new Uint8Array([head.length, 0, 0, 0, ...head, 7, 8, 9]).buffer
  );
  expect(content).toEqual({ a: 1 });
  expect(buffers.map(buffer => [...new Uint8Array(buffer as ArrayBuffer)])).toEqual([[7, 8], [9]]);
});
