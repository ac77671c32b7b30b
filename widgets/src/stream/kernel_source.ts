/**
 * `KernelSource`: the monitor of a kernel, over its control channel and iopub.
 *
 * What the kernel owns is only mirrored here (`mirror.ts`); what the page owns is whether it is visible, and the
 * accounts of the stream.
 */

import { loadBokeh } from '../charts/bokeh.js';
import { NotLoaded, type KernelLike, type MessageLike } from './channel.js';
import { ChannelSource } from './channel_source.js';
import type { ChartDocument } from './commands.js';
import * as words from './connection.js';
import { Refill } from './refill.js';
import type { MonitorSource } from './source.js';
import { KernelWatch, type LostReason } from './kernel_watch.js';
import { frameOf, type Subscription } from './page_messages.js';
import { PROTOCOL } from './protocol.js';

export interface KernelSourceOptions {
  /** Loads the package into a kernel that has not got it; `say` shows what is happening. */
  load?: (say: (text: string) => void) => Promise<void>;
  /** The kernel is known to have the package. */
  loaded?: boolean;
}

const RETRY_MS = 5000;
/** How often a stopped monitor is asked whether a switch that is wanted has happened. */
const LOOK_MS = 1000;

export class KernelSource extends ChannelSource implements MonitorSource {
  readonly recorded = null;
  private readonly watch: KernelWatch;
  private readonly refill = new Refill(
    () => this.accounts.owedSince,
    since => void this.fetch(since)
  );
  private visible = false;
  private subscribed = false;
  /** Frames that overtake the answer to our subscription; null when none is under way. */
  private early: MessageLike[] | null = null;
  /** A chart document that was asked for before the view does. */
  private ahead: Promise<ChartDocument> | null = null;
  /** Grows whenever what was asked before no longer matters. */
  private turn = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** What became of the process that measured; null while that is still there. */
  private fate: words.Fate | null = null;

  constructor(
    kernel: KernelLike,
    private readonly options: KernelSourceOptions = {}
  ) {
    super(kernel, options.loaded);
    this.watch = new KernelWatch(kernel, this);
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
      this.commands.unsubscribe();
    }
  }

  refresh(): void {
    if (this.visible && !this.watch.lost) {
      void this.attach(false);
    }
  }

  async start(): Promise<void> {
    await this.ensureLoaded();
    await this.commands.start();
    this.refresh();
  }

  /**
   * Load the package into the kernel if it is not, where the host can.
   *
   * @throws NotLoaded when it cannot
   */
  async ensureLoaded(): Promise<void> {
    const { state } = this.connection;
    // A source that was never visible has sent no request yet.
    if (state === 'connecting' ? await this.commands.isLoaded() : state !== 'not-loaded') {
      return;
    }
    if (this.options.load === undefined) {
      const { text, remedy } = words.notLoaded();
      throw new NotLoaded(`${text} Run ${String(remedy)}`);
    }
    await this.options.load(text => this.setConnection(words.connecting(text)));
  }

  async stop(): Promise<void> {
    await this.commands.stop();
    this.refresh();
  }

  async resume(): Promise<void> {
    await this.attach(true);
  }

  override dispose(): void {
    this.watch.dispose();
    super.dispose();
    this.setVisible(false);
    this.rest();
  }

  /** The charts of the schema, which were asked for together with its rows. */
  override document(): Promise<ChartDocument> {
    const document = this.ahead ?? super.document();
    this.ahead = null;
    return document;
  }

  /** Forget what is under way: no subscription, no timers. */
  private rest(): void {
    this.turn += 1;
    this.subscribed = false;
    this.early = null;
    clearTimeout(this.timer);
    this.refill.rest();
  }

  /** Ask who is there, then subscribe. */
  private async attach(touch: boolean): Promise<void> {
    this.rest();
    await this.guard(async turn => {
      if (this.kernel.status === 'dead') {
        this.setConnection(words.after(this.fate, words.dead()));
        return;
      }
      // Both at once: what a first answer costs in time, a second one costs again.
      const greeting = this.commands.hello();
      this.early = [];
      const subscribed = quietly(this.commands.subscribe(touch));
      const hello = await greeting;
      if (turn !== this.turn) {
        return;
      }
      if (hello.protocol !== PROTOCOL) {
        this.early = null;
        this.commands.unsubscribe();
        this.setConnection(words.incompatible(hello));
        return;
      }
      const subscription = await subscribed;
      if (turn === this.turn) {
        await this.open(subscription, turn);
      }
    });
  }

  private async open(subscription: Subscription, turn: number): Promise<void> {
    const { session, schema, seq } = subscription;
    const known = this.schema;
    const sameSession = session === this.session && known !== null;
    if (!sameSession || schema.version !== known.version) {
      if (schema.series.length > 0) {
        this.ahead = quietly(super.document());
      }
      const { rows, events } = await this.commands.history(0);
      if (turn !== this.turn) {
        return;
      }
      this.mirror.begin(session, rows.schema);
      if (sameSession) {
        this.accounts.resume(seq);
        this.accounts.backfill(rows.seq);
      } else {
        this.accounts.reset(seq, rows.seq);
      }
      this.mirror.takeSubscription({ ...subscription, events });
      this.opened.emit(rows.schema);
      this.arrived.emit(rows);
    } else {
      this.accounts.resume(seq);
      this.mirror.takeSubscription(subscription);
    }
    this.settle(subscription);
    const early = this.early ?? [];
    this.early = null;
    for (const message of early) {
      this.onFrame(message);
    }
    this.refill.look();
  }

  /** Show the state in the reply to a subscription, and keep the lease if frames are to come. */
  private settle({ running, paused, session, schema, lease }: Subscription): void {
    clearTimeout(this.timer);
    this.subscribed = running;
    this.fate = running || session !== null ? null : this.fate;
    if (!running) {
      this.setConnection(words.after(this.fate, words.stopped(session)));
      this.commands.unsubscribe();
      if (this.loaders.some(loader => loader.wanted !== null)) {
        // No frame will show that the requested switch has happened.
        this.timer = setTimeout(() => this.refresh(), LOOK_MS);
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
    await this.guard(async turn => {
      const subscription = await this.commands.subscribe();
      if (turn !== this.turn) {
        return;
      }
      const { session, schema } = subscription;
      if (session !== this.session || schema.version !== this.schema?.version) {
        this.refresh();
      } else {
        this.mirror.takeSubscription(subscription);
        this.settle(subscription);
      }
    });
  }

  /** Fetch the rows after `since`. */
  private async fetch(since: number): Promise<void> {
    await this.guard(async turn => {
      const { rows, events } = await this.commands.history(since);
      if (turn === this.turn && rows.schema.version === this.schema?.version) {
        this.accounts.backfill(rows.seq);
        this.mirror.take(this.loaders, this.strip, events);
        this.arrived.emit(rows);
      }
    });
  }

  /** Run one step; an error becomes a connection state, unless the turn is over by then. */
  private async guard(step: (turn: number) => Promise<void>): Promise<void> {
    const { turn } = this;
    try {
      await step(turn);
    } catch (error) {
      if (turn === this.turn) {
        this.explain(error);
      }
    }
  }

  /** Say what went wrong, and try again where that may help. */
  private explain(error: unknown): void {
    this.rest();
    this.setConnection(words.after(this.fate, words.explain(error, this.kernel.status)));
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

  private take(message: MessageLike): void {
    const { session, schema } = this;
    const frame = schema && frameOf(message, session, schema);
    if (schema === null || frame === null) {
      this.refresh();
      return;
    }
    if (!this.accounts.frame(frame.seq, Date.now() - frame.sampled * 1000)) {
      return;
    }
    const [seq, time] = [Float64Array.of(frame.seq), Float64Array.of(frame.time)];
    this.arrived.emit({ schema, seq, time, values: frame.values });
    this.mirror.mergeAnalysis(frame);
    this.mirror.take(frame.loaders, frame.strip, frame.events, frame.recording);
    if (this.connection.state === 'paused') {
      void this.renew();
    }
    this.refill.look();
  }

  onNotice(kind: string, bokeh: string | null): void {
    if (kind === 'loaded' && bokeh !== null) {
      // Somebody is going to want charts; BokehJS takes a moment to start.
      void quietly(loadBokeh(bokeh, () => this.bokehjs()));
    }
    if (kind === 'unloaded') {
      this.rest();
      this.channel.forget();
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

  onLost(reason: LostReason): void {
    const [state, why] = words.LOST[reason];
    if (reason !== 'disconnected') {
      const died = reason !== 'restarting' || this.fate?.died === true;
      this.fate = { died, recorded: this.recording?.path ?? this.fate?.recorded ?? null };
    }
    this.rest();
    this.channel.cancel(why);
    this.setConnection(words.after(this.fate, state));
  }

  onFound(): void {
    this.setConnection(words.connecting());
    this.refresh();
  }
}

/** The promise, whose rejection is not reported where nobody awaits it. */
function quietly<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
