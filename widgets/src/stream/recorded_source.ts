/** `RecordedSource`: a session from its file, read once through a kernel that can open it. */

import type { CodeReply } from './protocol.js';
import { KernelError, type KernelLike } from './channel.js';
import { ChannelSource } from './channel_source.js';
import * as connections from './connection.js';
import type { Recorded } from './sessions.js';
import type { MonitorSource } from './source.js';
import type { LoaderState, Subscription } from './page_messages.js';

/** The recording to open: by the kernel's name for it, or by its file. */
export type RecordedPlace = { readonly id: string } | { readonly path: string };

export class RecordedSource extends ChannelSource implements MonitorSource {
  recorded: Recorded | null = null;
  readonly canStart = false;
  private path: string | null;
  private wanted = false;
  private loading = false;
  private generation = 0;

  constructor(kernel: KernelLike, place: RecordedPlace) {
    super(kernel);
    this.connection = connections.connecting('Opening the recorded session…');
    this.path = 'path' in place ? place.path : null;
    this.commands.recorded = 'id' in place ? place.id : null;
  }

  setVisible(visible: boolean): void {
    this.wanted = visible;
    if (visible && this.recorded === null) {
      this.refresh();
    }
  }

  refresh(): void {
    if (this.wanted && !this.loading) {
      void this.load();
    }
  }

  /** Open the file anew: a session that is still being recorded has grown. */
  async reload(): Promise<void> {
    if (this.path !== null) {
      this.commands.recorded = await this.commands.open(this.path);
    }
    await this.read(this.generation);
  }

  start(): Promise<void> {
    return refuse();
  }

  stop(): Promise<void> {
    return refuse();
  }

  resume(): Promise<void> {
    return refuse();
  }

  override switchTo(): Promise<LoaderState> {
    return refuse();
  }

  override set(): Promise<LoaderState> {
    return refuse();
  }

  override configure(): Promise<void> {
    return refuse();
  }

  override diagnose(): Promise<void> {
    return refuse();
  }

  override tune(): Promise<void> {
    return refuse();
  }

  override code(): Promise<CodeReply> {
    return refuse();
  }

  override undoTune(): Promise<void> {
    return refuse();
  }

  override cancelDiagnosis(): Promise<void> {
    return refuse();
  }

  override profile(): Promise<void> {
    return refuse();
  }

  override mark(): Promise<void> {
    return refuse();
  }

  override async exportPage(): Promise<{ filename: string; html: string }> {
    return this.reopening(() => this.commands.exportPage());
  }

  override dispose(): void {
    this.generation += 1;
    super.dispose();
  }

  private async load(): Promise<void> {
    const { generation } = this;
    this.loading = true;
    try {
      if (this.commands.recorded === null && this.path !== null) {
        this.commands.recorded = await this.commands.open(this.path);
      }
      await this.reopening(() => this.read(generation));
    } catch (error) {
      if (generation === this.generation) {
        this.setConnection(connections.unopened(error, this.path));
      }
    } finally {
      this.loading = false;
    }
  }

  private async read(generation: number): Promise<void> {
    const subscription = await this.commands.subscribe();
    const { rows, events } = await this.commands.history(0);
    if (generation !== this.generation) {
      return;
    }
    const recorded = subscription.recorded ?? undisclosed(subscription);
    this.recorded = recorded;
    this.path = recorded.path;
    this.mirror.begin(subscription.session, rows.schema);
    // Its loaders are gone; what they delivered is left.
    const loaders = subscription.loaders.map(state => ({ ...state, ended: true }));
    this.mirror.mergeAnalysis(subscription);
    this.mirror.take(loaders, subscription.strip, events);
    this.setConnection(connections.recorded(recorded));
    this.opened.emit(rows.schema);
    this.arrived.emit(rows);
  }

  /** A restarted kernel has forgotten what it had opened: open the file once more. */
  private async reopening<T>(step: () => Promise<T>): Promise<T> {
    try {
      return await step();
    } catch (error) {
      if (!(error instanceof KernelError) || this.path === null) {
        throw error;
      }
      this.commands.recorded = await this.commands.open(this.path);
      return step();
    }
  }
}

function undisclosed({ session }: Subscription): never {
  throw new Error(`The kernel answered with the running session ${String(session)}.`);
}

function refuse(): Promise<never> {
  return Promise.reject(
    new Error('A recorded session is a picture: nothing in it can be changed.')
  );
}
