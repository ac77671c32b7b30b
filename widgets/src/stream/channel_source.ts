/** The common part of the sources over a kernel's control channel: mirror, emitters and requests. */

import type { CodeReply } from './protocol.js';
import { Accounts, type StreamStats } from './accounts.js';
import type { AnalysisState } from '../analysis/analysis.js';
import { Channel, uuid, type KernelLike } from './channel.js';
import { Commands, type ChartDocument } from './commands.js';
import * as connections from './connection.js';
import type { Connection } from './connection.js';
import { Emitter } from './emitter.js';
import { Mirror } from './mirror.js';
import type { SessionEntry } from './sessions.js';
import type { ChartChoice, Changes, Recording, Settings } from './page_messages.js';
import type * as wire from './page_messages.js';

export abstract class ChannelSource {
  connection: Connection = connections.connecting();
  readonly connectionChanged = new Emitter<Connection>();
  readonly opened = new Emitter<wire.Schema>();
  readonly arrived = new Emitter<wire.Rows>();

  protected readonly mirror = new Mirror();
  protected readonly accounts = new Accounts();
  protected readonly channel: Channel;
  protected readonly commands: Commands;

  /** @param loaded - the kernel is known to have the package */
  constructor(
    readonly kernel: KernelLike,
    loaded = false
  ) {
    this.channel = new Channel(kernel, loaded);
    this.commands = new Commands(this.channel, uuid());
  }

  get stats(): StreamStats {
    return this.accounts.stats;
  }

  resetStats(): void {
    this.accounts.restart();
  }

  get busy(): boolean {
    return this.kernel.status === 'busy';
  }

  get session(): string | null {
    return this.mirror.session;
  }

  get schema(): wire.Schema | null {
    return this.mirror.schema;
  }

  get loaders(): readonly wire.LoaderState[] {
    return this.mirror.loaders;
  }

  get strip(): wire.Strip | null {
    return this.mirror.strip;
  }

  get events(): readonly wire.MonitorEvent[] {
    return this.mirror.events;
  }

  get settings(): Settings | null {
    return this.mirror.settings;
  }

  get charts(): readonly ChartChoice[] {
    return this.mirror.charts;
  }

  get recording(): Recording | null {
    return this.mirror.recording;
  }

  get analysis(): AnalysisState | null {
    return this.mirror.analysis;
  }

  get changed(): Emitter<void> {
    return this.mirror.changed;
  }

  async switchTo(loader: string, backend: string, confirmed = false): Promise<wire.LoaderState> {
    return this.mirror.takeLoader(await this.commands.switchTo(loader, backend, confirmed));
  }

  async set(loader: string, knobs: Partial<wire.Knobs>): Promise<wire.LoaderState> {
    return this.mirror.takeLoader(await this.commands.set(loader, knobs));
  }

  async decline(loader: string): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.decline(loader));
  }

  async diagnose(loader: string, synthetic: boolean): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.diagnose(loader, synthetic));
  }

  async tune(loader: string): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.tune(loader));
  }

  code(loader: string): Promise<CodeReply> {
    return this.commands.code(loader);
  }

  async undoTune(): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.undoTune());
  }

  async cancelDiagnosis(): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.cancelDiagnosis());
  }

  async profile(loader: string, steps: number): Promise<void> {
    this.mirror.takeAnalysis(await this.commands.profile(loader, steps));
  }

  async mark(label: string): Promise<void> {
    await this.commands.mark(label);
  }

  async configure(changes: Changes): Promise<void> {
    this.mirror.takeSettings(await this.commands.configure(changes));
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

  /** The recorded sessions of the kernel's machine, newest first. */
  sessions(): Promise<readonly SessionEntry[]> {
    return this.commands.sessions();
  }

  /** @returns by which name the kernel knows the recording in `path` */
  openSession(path: string): Promise<string> {
    return this.commands.open(path);
  }

  dispose(): void {
    this.channel.cancel('The view was closed.');
    this.connectionChanged.clear();
    this.opened.clear();
    this.arrived.clear();
    this.changed.clear();
  }

  protected setConnection(next: Connection): void {
    const { state, text, recorded } = this.connection;
    if (next.state !== state || next.text !== text || next.recorded !== recorded) {
      this.connection = next;
      this.connectionChanged.emit(next);
    }
  }
}
