/**
 * `KernelSource`: the monitor of a kernel, over its control channel and iopub.
 *
 * The kernel's state is only mirrored here (`mirror.ts`); the page's own state is its visibility and the counts of the
 * stream.
 */

import { loadBokeh } from '../charts/bokeh.js';
import { NotLoaded, type KernelLike, type MessageLike } from './channel.js';
import { ChannelSource } from './channel_source.js';
import type { ChartDocument } from './commands.js';
import * as connections from './connection.js';
import { Refill } from './accounts.js';
import type { MonitorSource } from './source.js';
import { KernelWatch, type LostReason } from './kernel_watch.js';
import { frameOf, type Subscription } from './page_messages.js';
import { PROTOCOL } from './protocol.js';

export interface KernelSourceOptions {
  /** Loads the package into a kernel that has not got it; `show` shows what is happening. */
  load?: (show: (text: string) => void) => Promise<void>;
  /** The kernel is known to have the package. */
  loaded?: boolean;
}

const RETRY_MS = 5000;
/** The period of asking a stopped monitor whether a requested switch has happened, in ms. */
const SWITCH_POLL_MS = 1000;

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
  /** The chart document, requested before the view asks for it. */
  private requestedDocument: Promise<ChartDocument> | null = null;
  /** Counts resets: a reply to a request of an earlier generation is dropped. */
  private generation = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** The end of the process that measured; null while it runs. */
  private processEnd: connections.ProcessEnd | null = null;

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
      this.reset();
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
      const { text, remedy } = connections.notLoaded();
      throw new NotLoaded(`${text} Run ${String(remedy)}`);
    }
    await this.options.load(text => this.setConnection(connections.connecting(text)));
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
    this.reset();
  }

  /** The charts of the schema, which were asked for together with its rows. */
  override document(): Promise<ChartDocument> {
    const document = this.requestedDocument ?? super.document();
    this.requestedDocument = null;
    return document;
  }

  /** Drop the subscription, the timers, and the replies to what was asked before. */
  private reset(): void {
    this.generation += 1;
    this.subscribed = false;
    this.early = null;
    clearTimeout(this.timer);
    this.refill.cancel();
  }

  /** Check the version of the kernel's package, and subscribe. */
  private async attach(touch: boolean): Promise<void> {
    this.reset();
    await this.guard(async generation => {
      if (this.kernel.status === 'dead') {
        this.setConnection(connections.afterProcessEnd(this.processEnd, connections.dead()));
        return;
      }
      // Both at once: what a first answer costs in time, a second one costs again.
      const greeting = this.commands.hello();
      this.early = [];
      const subscribed = quietly(this.commands.subscribe(touch));
      const hello = await greeting;
      if (generation !== this.generation) {
        return;
      }
      if (hello.protocol !== PROTOCOL) {
        this.early = null;
        this.commands.unsubscribe();
        this.setConnection(connections.incompatible(hello));
        return;
      }
      const subscription = await subscribed;
      if (generation === this.generation) {
        await this.open(subscription, generation);
      }
    });
  }

  private async open(subscription: Subscription, generation: number): Promise<void> {
    const { session, schema, seq } = subscription;
    const known = this.schema;
    const sameSession = session === this.session && known !== null;
    if (!sameSession || schema.version !== known.version) {
      if (schema.series.length > 0) {
        this.requestedDocument = quietly(super.document());
      }
      const { rows, events } = await this.commands.history(0);
      if (generation !== this.generation) {
        return;
      }
      if (rows.schema.version !== schema.version) {
        // The schema has changed between the replies: the charts asked for may be those of the old one.
        this.requestedDocument = null;
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
    this.refill.request();
  }

  /** Show the state in the reply to a subscription, and keep the lease if frames are to come. */
  private settle({ running, paused, session, schema, lease }: Subscription): void {
    clearTimeout(this.timer);
    this.subscribed = running;
    this.processEnd = running || session !== null ? null : this.processEnd;
    if (!running) {
      this.setConnection(
        connections.afterProcessEnd(this.processEnd, connections.stopped(session))
      );
      this.commands.unsubscribe();
      if (this.loaders.some(loader => loader.wanted !== null)) {
        // No frame will show that the requested switch has happened.
        this.timer = setTimeout(() => this.refresh(), SWITCH_POLL_MS);
      }
    } else if (paused) {
      // Renewing would be the very activity that a pause spares the kernel; the next cell subscribes again.
      this.setConnection(connections.paused());
    } else {
      this.setConnection(connections.running(schema.interval));
      this.timer = setTimeout(() => void this.renew(), (lease * 1000) / 2);
    }
  }

  private async renew(): Promise<void> {
    await this.guard(async generation => {
      const subscription = await this.commands.subscribe();
      if (generation !== this.generation) {
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
    await this.guard(async generation => {
      const { rows, events } = await this.commands.history(since);
      if (generation === this.generation && rows.schema.version === this.schema?.version) {
        this.accounts.backfill(rows.seq);
        this.mirror.take(this.loaders, this.strip, events);
        this.arrived.emit(rows);
      }
    });
  }

  /** Run one step; an error becomes a connection state, unless it is of an earlier generation by then. */
  private async guard(step: (generation: number) => Promise<void>): Promise<void> {
    const { generation } = this;
    try {
      await step(generation);
    } catch (error) {
      if (generation === this.generation) {
        this.explain(error);
      }
    }
  }

  /** Say what went wrong, and try again where that may help. */
  private explain(error: unknown): void {
    this.reset();
    this.setConnection(
      connections.afterProcessEnd(this.processEnd, connections.explain(error, this.kernel.status))
    );
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
    const rows = [...(frame.before ?? []), [frame.seq, frame.time]] as [number, number][];
    const age = Date.now() - frame.sampled * 1000;
    const fresh = rows.filter(([seq, time]) =>
      this.accounts.frame(seq, age + (frame.time - time) * 1000)
    );
    if (fresh.length === 0) {
      return;
    }
    const [seq, time] = [0, 1].map(k => Float64Array.from(fresh, row => row[k]!)) as [
      Float64Array,
      Float64Array
    ];
    const values = frame.values.slice((rows.length - fresh.length) * schema.series.length);
    this.arrived.emit({ schema, seq, time, values });
    this.mirror.mergeAnalysis(frame);
    this.mirror.take(frame.loaders ?? this.loaders, frame.strip, frame.events, frame.recording);
    if (this.connection.state === 'paused') {
      void this.renew();
    }
    this.refill.request();
  }

  onNotice(kind: string, bokeh: string | null): void {
    if (kind === 'loaded' && bokeh !== null) {
      // Somebody is going to want charts; BokehJS takes a moment to start.
      void quietly(loadBokeh(bokeh, () => this.bokehjs()));
    }
    if (kind === 'unloaded') {
      this.reset();
      this.channel.forget();
      this.setConnection(connections.notLoaded());
    } else if (kind === 'paused' && this.subscribed) {
      clearTimeout(this.timer);
      this.setConnection(connections.paused());
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
    const [state, why] = connections.LOST[reason];
    if (reason !== 'disconnected') {
      const died = reason !== 'restarting' || this.processEnd?.died === true;
      this.processEnd = {
        died,
        recorded: this.recording?.path ?? this.processEnd?.recorded ?? null
      };
    }
    this.reset();
    this.channel.cancel(why);
    this.setConnection(connections.afterProcessEnd(this.processEnd, state));
  }

  onFound(): void {
    this.setConnection(connections.connecting());
    this.refresh();
  }
}

/** The promise, whose rejection is not reported where nobody awaits it. */
function quietly<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
