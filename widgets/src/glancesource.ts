/**
 * A kernel's glance, once a second while somebody can see it: from a dashboard that shows the same kernel, else by a
 * lease of its own. It never keeps a kernel alive: nothing is renewed while the kernel's monitor is paused.
 */

import { Channel, uuid, type KernelLike, type MessageLike } from './channel.js';
import { Commands } from './commands.js';
import { Emitter } from './emitter.js';
import { decodeGlance, type Glance } from './glance.js';
import { GlanceFeed } from './glancefeed.js';
import type { MonitorSource } from './source.js';
import { KernelWatch } from './watch.js';
import { PROTOCOL, type Rows } from './wire.js';

/** `none`: the kernel has no monitor that runs. */
export type GlanceState = 'none' | 'running' | 'paused';

/** A dashboard that sent nothing for so long, in ms or in its own intervals, is not one to listen to. */
const SILENT_MS = 3000;
const SILENT_ROWS = 3;

export class GlanceSource {
  state: GlanceState = 'none';
  glance: Glance | null = null;
  readonly changed = new Emitter<void>();
  /** A cell of this page asks for the sidebar: to be answered with `answerSidebar`. */
  readonly sidebarAsked = new Emitter<void>();

  private readonly channel: Channel;
  private readonly commands: Commands;
  private readonly watch: KernelWatch;
  private readonly feed = new GlanceFeed();
  private visible = false;
  /** Grows whenever what was asked before no longer matters. */
  private turn = 0;
  private leased = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private unlisten = (): void => undefined;
  /** Until when the dashboard's rows make a question of our own needless. */
  private lentUntil = -Infinity;

  constructor(private readonly kernel: KernelLike) {
    this.channel = new Channel(kernel);
    this.commands = new Commands(this.channel, uuid());
    this.watch = new KernelWatch(kernel, this);
  }

  /** Listen to a dashboard of the same kernel; null: there is none now. */
  borrow(source: MonitorSource | null): void {
    this.unlisten();
    this.lentUntil = -Infinity;
    if (source !== null) {
      this.unlisten = source.arrived.on(rows => this.onRows(source, rows));
    }
  }

  setVisible(visible: boolean): void {
    if (visible === this.visible) {
      return;
    }
    this.visible = visible;
    if (visible) {
      this.ask();
    } else {
      this.rest();
    }
  }

  dispose(): void {
    this.watch.dispose();
    this.unlisten();
    this.channel.cancel('The status bar looks elsewhere.');
    this.setVisible(false);
    this.changed.clear();
    this.sidebarAsked.clear();
  }

  /** The sidebar is opened, or will be when this notebook is the active one. */
  answerSidebar(): void {
    this.commands.answerSidebar(this.kernel.clientId);
  }

  onSidebar(page: string | null): void {
    if (page === this.kernel.clientId) {
      this.sidebarAsked.emit();
    }
  }

  onGlance({ content }: MessageLike): void {
    const { protocol } = content as { protocol?: unknown };
    if (this.leased && protocol === PROTOCOL && !this.lent) {
      try {
        this.show('running', decodeGlance(content));
      } catch (error) {
        console.warn('kernel_monitor: the status bar cannot read the kernel.', error);
        this.rest();
        this.show('none', null);
      }
    }
  }

  onNotice(kind: string): void {
    if (kind === 'paused') {
      clearTimeout(this.timer);
      if (this.state === 'running') {
        this.show('paused', null);
      }
    } else if (kind === 'unloaded' || kind === 'stopped') {
      this.rest(kind === 'stopped');
      if (kind === 'unloaded') {
        this.channel.forget();
      }
      this.show('none', null);
    } else if (kind === 'loaded' || kind === 'started') {
      this.ask();
    }
  }

  onCell(): void {
    if (this.state === 'paused') {
      this.ask();
    }
  }

  onLost(): void {
    this.rest(false);
    this.channel.cancel('The kernel went away.');
    this.show('none', null);
  }

  onFound(): void {
    this.ask();
  }

  private get lent(): boolean {
    return performance.now() < this.lentUntil;
  }

  private onRows(source: MonitorSource, rows: Rows): void {
    if (!this.visible || source.connection.state !== 'running' || rows.seq.length !== 1) {
      return; // A history, or a source that tells of the past.
    }
    const kind = source.analysis?.verdict?.kind ?? null;
    const glance = this.feed.take(source.session ?? '', rows, source.recording, kind);
    if (glance !== null) {
      const silent = Math.max(SILENT_MS, SILENT_ROWS * rows.schema.interval * 1000);
      this.lentUntil = performance.now() + silent;
      if (this.leased) {
        this.rest();
      }
      // When the dashboard is closed, ask ourselves.
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask(), silent);
      this.show('running', glance);
    }
  }

  /** Ask for glances, or go on asking; a kernel that has no monitor is asked again when it says that it has. */
  private ask(): void {
    clearTimeout(this.timer);
    if (!this.visible || this.watch.lost || this.kernel.status === 'dead') {
      return;
    }
    const turn = ++this.turn;
    this.commands.glance().then(
      ({ lease, running, paused, glance, sidebar }) => {
        if (turn !== this.turn) {
          return;
        }
        this.leased = running;
        this.onSidebar(sidebar);
        if (!running) {
          this.show('none', null);
        } else if (paused) {
          this.show('paused', null);
        } else {
          this.show('running', glance);
          this.timer = setTimeout(() => this.ask(), (lease * 1000) / 2);
        }
      },
      (error: unknown) => {
        if (turn === this.turn) {
          // Not loaded, too old or silent: then there is nothing to show, and the sidebar says why.
          console.debug('kernel_monitor: the kernel gives no glance.', error);
          this.leased = false;
          this.show('none', null);
        }
      }
    );
  }

  private rest(tell = true): void {
    this.turn += 1;
    clearTimeout(this.timer);
    if (this.leased && tell && !this.kernel.isDisposed && this.kernel.status !== 'dead') {
      this.commands.unsubscribe();
    }
    this.leased = false;
  }

  private show(state: GlanceState, glance: Glance | null): void {
    this.state = state;
    this.glance = glance;
    this.changed.emit();
  }
}
