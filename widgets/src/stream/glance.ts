/**
 * A kernel's glance, sent by the kernel once a second while this page can show it and renews its lease. It never keeps
 * a kernel alive: nothing is renewed while the kernel's monitor is paused.
 */

import { Channel, uuid, type KernelLike, type MessageLike } from './channel.js';
import { Commands } from './commands.js';
import { Emitter } from './emitter.js';
import { KernelWatch } from './kernel_watch.js';
import { decode } from './message_check.js';
import { PROTOCOL, type Figures } from './protocol.js';

/** `none`: the kernel has no monitor that runs. */
export type GlanceState = 'none' | 'running' | 'paused';

export class GlanceSource {
  state: GlanceState = 'none';
  glance: Figures | null = null;
  readonly changed = new Emitter<void>();
  /** A cell of this page requests the sidebar: to be answered with `answerSidebar`. */
  readonly sidebarAsked = new Emitter<void>();

  private readonly channel: Channel;
  private readonly commands: Commands;
  private readonly watch: KernelWatch;
  private visible = false;
  /** Counts requests: a reply to an earlier one is dropped. */
  private generation = 0;
  private leased = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly kernel: KernelLike) {
    this.channel = new Channel(kernel);
    this.commands = new Commands(this.channel, uuid());
    this.watch = new KernelWatch(kernel, this);
  }

  setVisible(visible: boolean): void {
    if (visible === this.visible) {
      return;
    }
    this.visible = visible;
    if (visible) {
      this.ask();
    } else {
      this.release();
    }
  }

  dispose(): void {
    this.watch.dispose();
    this.channel.cancel('The page no longer shows this kernel.');
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
    if (this.leased && protocol === PROTOCOL) {
      try {
        this.show('running', decode('Glance', content));
      } catch (error) {
        console.warn('kernel_monitor: the status bar cannot read the kernel.', error);
        this.release();
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
      this.release(kind === 'stopped');
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
    this.release(false);
    this.channel.cancel('The kernel went away.');
    this.show('none', null);
  }

  onFound(): void {
    this.ask();
  }

  /** Request or renew the lease. Without a monitor in the kernel, its next `loaded` or `started` notice comes here. */
  private ask(): void {
    clearTimeout(this.timer);
    if (!this.visible || this.watch.lost || this.kernel.status === 'dead') {
      return;
    }
    const generation = ++this.generation;
    this.commands.glance().then(
      ({ lease, running, paused, glance, sidebar }) => {
        if (generation !== this.generation) {
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
        if (generation === this.generation) {
          // Not loaded, of another protocol or silent: nothing to show here; the sidebar shows the reason.
          console.debug('kernel_monitor: the kernel gives no glance.', error);
          this.leased = false;
          this.show('none', null);
        }
      }
    );
  }

  /** @param notify - send an `unsubscribe`; not to a kernel that is gone */
  private release(notify = true): void {
    this.generation += 1;
    clearTimeout(this.timer);
    if (this.leased && notify) {
      this.commands.unsubscribe();
    }
    this.leased = false;
  }

  private show(state: GlanceState, glance: Figures | null): void {
    this.state = state;
    this.glance = glance;
    this.changed.emit();
  }
}

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const TENTH = new Intl.NumberFormat('en-US', {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1
});

/** One part of the line, and the same in full words. */
export interface GlancePart {
  readonly text: string;
  readonly meaning: string;
}

/** The parts of the line; a part whose values are missing is left out. */
export function glanceParts(glance: Figures): GlancePart[] {
  const parts: GlancePart[] = [];
  if (glance.cpu !== null) {
    const text = `${WHOLE.format(glance.cpu)} %`;
    parts.push({ text: `CPU ${text}`, meaning: `CPU: ${text} busy, mean over the cores` });
  }
  if (glance.gpu !== null) {
    const text = `${WHOLE.format(glance.gpu)} %`;
    parts.push({ text: `GPU ${text}`, meaning: `GPU: ${text} utilised, mean over the GPUs` });
  }
  const gpu = memory(glance.gpu_memory_used, glance.gpu_memory_total);
  const host = memory(glance.memory_used, glance.memory_total);
  if (gpu !== null) {
    parts.push({ text: gpu, meaning: `GPU memory: ${gpu} used` });
  } else if (host !== null) {
    parts.push({ text: host, meaning: `Memory: ${host} used` });
  }
  if (glance.images !== null) {
    const text = WHOLE.format(glance.images);
    parts.push({
      text: `${text} img/s`,
      meaning: `The loop that trains: ${text} images per second, mean of the last 2 s`
    });
  }
  return parts;
}

/** `12.3/80 GB`, in the units that memory is sold in. */
function memory(used: number | null, total: number | null): string | null {
  if (used === null || total === null || total <= 0) {
    return null;
  }
  return `${TENTH.format(used / 1e9)}/${WHOLE.format(total / 1e9)} GB`;
}
