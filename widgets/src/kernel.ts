/**
 * `KernelSource`: the monitor of a kernel, over its control channel and iopub.
 *
 * What the kernel owns (session, schema, loaders, strip, events) is only mirrored here; what the page owns is whether
 * it is visible, and the accounts of the stream.
 */

import { Accounts, type StreamStats } from './accounts.js';
import { Channel, NotLoaded, uuid, type KernelLike, type MessageLike } from './channel.js';
import { Commands, type ChartDocument } from './commands.js';
import * as words from './connection.js';
import type { Connection } from './connection.js';
import { Emitter } from './emitter.js';
import type { MonitorSource } from './source.js';
import { KernelWatch } from './watch.js';
import * as wire from './wire.js';

export interface KernelSourceOptions {
  /** Loads the package into a kernel that has not got it; `say` shows what is happening. */
  load?: (say: (text: string) => void) => Promise<void>;
}

const RETRY_MS = 5000;
/** Missed rows are asked for at most this often: a gap a frame must not become a request a frame. */
const REFILL_MS = 1000;

/** The monitor of a kernel, over its control channel and iopub. */
export class KernelSource implements MonitorSource {
  connection: Connection = words.connecting();
  session: string | null = null;
  schema: wire.Schema | null = null;
  loaders: readonly wire.LoaderState[] = [];
  strip: wire.Strip | null = null;
  events: readonly wire.MonitorEvent[] = [];
  readonly connectionChanged = new Emitter<Connection>();
  readonly opened = new Emitter<wire.Schema>();
  readonly arrived = new Emitter<wire.Rows>();
  readonly changed = new Emitter<void>();

  private readonly channel: Channel;
  private readonly commands: Commands;
  private readonly watch: KernelWatch;
  private readonly accounts = new Accounts();
  private readonly eventIds = new Set<number>();
  private visible = false;
  private subscribed = false;
  /** Frames that overtake the answer to our subscription; null when none is under way. */
  private early: MessageLike[] | null = null;
  /** Grows whenever what was asked before no longer matters. */
  private turn = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private refilledAt = -Infinity;
  private refillTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly kernel: KernelLike,
    private readonly options: KernelSourceOptions = {}
  ) {
    this.channel = new Channel(kernel);
    this.commands = new Commands(this.channel, uuid());
    this.watch = new KernelWatch(kernel, this);
  }

  get stats(): StreamStats {
    return this.accounts.stats;
  }

  resetStats(): void {
    this.accounts.restart();
  }

  get canStart(): boolean {
    const { state } = this.connection;
    return state === 'stopped' || (state === 'not-loaded' && this.options.load !== undefined);
  }

  setVisible(visible: boolean): void {
    if (visible === this.visible) {
      return;
    }
    this.visible = visible;
    if (visible) {
      this.refresh();
    } else {
      this.rest();
      if (!this.kernel.isDisposed && this.kernel.status !== 'dead') {
        this.commands.unsubscribe();
      }
    }
  }

  refresh(): void {
    if (this.visible && !this.watch.lost) {
      void this.attach(false);
    }
  }

  async start(): Promise<void> {
    if (this.connection.state === 'not-loaded') {
      if (this.options.load === undefined) {
        throw new NotLoaded(`${this.connection.text} Run ${String(this.connection.remedy)}`);
      }
      await this.options.load(text => this.setConnection(words.connecting(text)));
    }
    await this.commands.start();
    this.refresh();
  }

  async stop(): Promise<void> {
    await this.commands.stop();
    this.refresh();
  }

  async resume(): Promise<void> {
    await this.attach(true);
  }

  async switchTo(loader: string, backend: string, confirmed = false): Promise<wire.LoaderState> {
    return this.takeState(await this.commands.switchTo(loader, backend, confirmed));
  }

  async set(loader: string, knobs: Partial<wire.Knobs>): Promise<wire.LoaderState> {
    return this.takeState(await this.commands.set(loader, knobs));
  }

  history(): Promise<wire.History> {
    return this.commands.history(0);
  }

  document(): Promise<ChartDocument> {
    return this.commands.document();
  }

  bokehjs(): Promise<{ version: string; text: string }> {
    return this.commands.bokehjs();
  }

  exportPage(): Promise<{ filename: string; html: string }> {
    return this.commands.exportPage();
  }

  dispose(): void {
    this.watch.dispose();
    this.channel.cancel('The view was closed.');
    this.setVisible(false);
    this.rest();
    this.connectionChanged.clear();
    this.opened.clear();
    this.arrived.clear();
    this.changed.clear();
  }

  /** Forget what is under way: no subscription, no timers. */
  private rest(): void {
    this.turn += 1;
    this.subscribed = false;
    this.early = null;
    clearTimeout(this.timer);
    clearTimeout(this.refillTimer);
  }

  private setConnection(next: Connection): void {
    if (next.state !== this.connection.state || next.text !== this.connection.text) {
      this.connection = next;
      this.connectionChanged.emit(next);
    }
  }

  /** Ask who is there, then subscribe. */
  private async attach(touch: boolean): Promise<void> {
    this.rest();
    const { turn } = this;
    await this.guard(turn, async () => {
      if (this.kernel.status === 'dead') {
        this.setConnection(words.dead());
        return;
      }
      const hello = await this.commands.hello();
      if (turn !== this.turn) {
        return;
      }
      if (hello.protocol !== wire.PROTOCOL) {
        this.setConnection(words.incompatible(hello));
        return;
      }
      this.early = [];
      const subscription = await this.commands.subscribe(touch);
      if (turn === this.turn) {
        await this.open(subscription, turn);
      }
    });
  }

  private async open(subscription: wire.Subscription, turn: number): Promise<void> {
    const { session, schema, seq } = subscription;
    const sameSession = session === this.session && this.schema !== null;
    if (!sameSession || schema.version !== this.schema?.version) {
      const { rows, events } = await this.commands.history(0);
      if (turn !== this.turn) {
        return;
      }
      this.session = session;
      this.schema = rows.schema;
      if (sameSession) {
        this.accounts.resume(seq);
        this.accounts.backfill(rows.seq);
      } else {
        this.accounts.reset(seq, rows.seq);
        this.events = [];
        this.eventIds.clear();
      }
      this.mirror(subscription.loaders, subscription.strip, events);
      this.opened.emit(rows.schema);
      this.arrived.emit(rows);
    } else {
      this.accounts.resume(seq);
      this.mirror(subscription.loaders, subscription.strip, subscription.events);
    }
    this.settle(subscription);
    const early = this.early ?? [];
    this.early = null;
    for (const message of early) {
      this.onFrame(message);
    }
    this.refill();
  }

  /** Take up what a subscription or its renewal tells, and keep the lease if frames are to come. */
  private settle({ running, paused, session, schema, lease }: wire.Subscription): void {
    clearTimeout(this.timer);
    this.subscribed = running;
    if (!running) {
      this.setConnection(words.stopped(session));
      this.commands.unsubscribe();
      if (this.loaders.some(loader => loader.wanted !== null)) {
        // No frame will tell when the switch that was asked for has happened.
        this.timer = setTimeout(() => this.refresh(), REFILL_MS);
      }
    } else if (paused) {
      // Renewing would be the very activity that a pause spares the kernel; the next cell subscribes again.
      this.setConnection(words.paused());
    } else {
      this.setConnection(words.running(schema.interval));
      this.timer = setTimeout(() => void this.renew(), (lease * 1000) / 2);
    }
  }

  private async renew(): Promise<void> {
    const { turn } = this;
    await this.guard(turn, async () => {
      const subscription = await this.commands.subscribe();
      if (turn !== this.turn) {
        return;
      }
      const { session, schema } = subscription;
      if (session !== this.session || schema.version !== this.schema?.version) {
        this.refresh();
      } else {
        this.mirror(subscription.loaders, subscription.strip, subscription.events);
        this.settle(subscription);
      }
    });
  }

  private takeState(state: wire.LoaderState): wire.LoaderState {
    const loaders = this.loaders.map(old => (old.id === state.id ? state : old));
    this.mirror(loaders, this.strip, []);
    return state;
  }

  private mirror(
    loaders: readonly wire.LoaderState[],
    strip: wire.Strip | null,
    events: readonly wire.MonitorEvent[]
  ): void {
    this.loaders = loaders;
    this.strip = strip;
    const fresh = events.filter(event => !this.eventIds.has(event.id));
    if (fresh.length > 0) {
      fresh.forEach(event => this.eventIds.add(event.id));
      this.events = [...this.events, ...fresh].sort((a, b) => a.id - b.id);
    }
    this.changed.emit();
  }

  /** Fetch the rows that were missed. */
  private refill(): void {
    clearTimeout(this.refillTimer);
    const since = this.accounts.owedSince;
    if (since === null) {
      return;
    }
    const wait = this.refilledAt + REFILL_MS - performance.now();
    if (wait > 0) {
      this.refillTimer = setTimeout(() => this.refill(), wait);
      return;
    }
    this.refilledAt = performance.now();
    const { turn } = this;
    void this.guard(turn, async () => {
      const { rows, events } = await this.commands.history(since);
      if (turn === this.turn && rows.schema.version === this.schema?.version) {
        this.accounts.backfill(rows.seq);
        this.mirror(this.loaders, this.strip, events);
        this.arrived.emit(rows);
      }
    });
  }

  /** Run one step; what goes wrong in it becomes a connection state, if it still matters then. */
  private async guard(turn: number, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (turn === this.turn) {
        this.explain(error);
      }
    }
  }

  /** Say what went wrong, and try again where that may help. */
  private explain(error: unknown): void {
    this.rest();
    this.setConnection(words.explain(error, this.kernel.status));
    if (this.connection.state === 'connecting') {
      this.timer = setTimeout(() => this.refresh(), RETRY_MS);
    }
  }

  onFrame(message: MessageLike): void {
    if (this.early !== null) {
      this.early.push(message);
      return;
    }
    if (!this.subscribed) {
      return;
    }
    try {
      this.take(message);
    } catch (error) {
      this.explain(error);
    }
  }

  private take({ content, buffers }: MessageLike): void {
    const { schema } = this;
    const { protocol } = content as { protocol?: unknown };
    const frame = protocol === wire.PROTOCOL ? wire.decodeFrame(content, buffers ?? []) : null;
    if (frame?.session !== this.session || frame.schema !== schema?.version) {
      this.refresh();
      return;
    }
    if (frame.values.length !== schema.series.length) {
      throw new wire.WireError(
        `frame: ${frame.values.length} values for ${schema.series.length} series.`
      );
    }
    if (!this.accounts.frame(frame.seq, Date.now() - frame.sampled * 1000)) {
      return;
    }
    const [seq, time] = [Float64Array.of(frame.seq), Float64Array.of(frame.time)];
    this.arrived.emit({ schema, seq, time, values: frame.values });
    this.mirror(frame.loaders, frame.strip, frame.events);
    if (this.connection.state === 'paused') {
      void this.renew();
    }
    this.refill();
  }

  onNotice(kind: string): void {
    if (kind === 'unloaded') {
      this.rest();
      this.setConnection(words.notLoaded());
    } else if (kind === 'paused' && this.subscribed) {
      clearTimeout(this.timer);
      this.setConnection(words.paused());
    } else {
      this.refresh();
    }
  }

  onCell(): void {
    if (this.connection.state === 'paused') {
      this.refresh();
    }
  }

  onLost(reason: 'dead' | 'restarting' | 'disconnected'): void {
    const [state, why] = words.LOST[reason];
    this.rest();
    this.channel.cancel(why);
    this.setConnection(state);
  }

  onFound(): void {
    this.setConnection(words.connecting());
    this.refresh();
  }
}
