/** The control commands, typed (docs/architecture.md, *Control*; mirrors kernel_monitor/stream/control.py). */

import { decodeAnalysis, type AnalysisNews } from './analysis.js';
import { Channel, type RequestOptions } from './channel.js';
import { decodeText } from './check.js';
import { decodeGlance, type Glance } from './glance.js';
import { decodeSessions, type SessionEntry } from './sessions.js';
import { decodeSettings, type Changes, type Settings } from './settings.js';
import * as wire from './wire.js';

/** A chart document as `bokeh.embed.json_item` gives it. */
export interface ChartDocument {
  /** Version of the schema that the charts have. */
  readonly schema: number;
  /** Version of the Bokeh that made it. */
  readonly bokeh: string;
  readonly item: unknown;
}

export interface GlanceLease {
  /** Seconds. */
  readonly lease: number;
  readonly running: boolean;
  readonly paused: boolean;
  readonly glance: Glance | null;
  /** The session id of the page whose sidebar a cell has asked for, unanswered; null where none has. */
  readonly sidebar: string | null;
}

/** Commands that a worker thread of the kernel answers. */
const SLOW: RequestOptions = { later: true, timeout: 120_000 };

/** Every method rejects with `NotLoaded`, `RequestTimeout`, `KernelGone`, `KernelError` or `WireError`. */
export class Commands {
  /** Which opened recording is asked about; null for what runs now. */
  recorded: string | null = null;

  constructor(
    private readonly channel: Channel,
    private readonly client: string
  ) {}

  async hello(): Promise<wire.Hello> {
    return wire.decodeHello((await this.channel.request('hello')).content);
  }

  /** Subscribe, or renew the lease; `touch` tells that a person acted, which ends a pause. */
  async subscribe(touch = false): Promise<wire.Subscription> {
    const args = this.about(touch ? { client: this.client, touch } : { client: this.client });
    const reply = await this.channel.request('subscribe', args, this.pace);
    return wire.decodeSubscription(reply.content);
  }

  /** Nobody waits for the answer: the page may be on its way out. */
  unsubscribe(): void {
    this.channel.tell('unsubscribe', { client: this.client });
  }

  async history(since: number): Promise<wire.History> {
    const { content, buffers } = await this.channel.request(
      'history',
      this.about({ since }),
      this.pace
    );
    return wire.decodeHistory(content, buffers);
  }

  async start(): Promise<void> {
    await this.channel.request('start', {}, SLOW);
  }

  async stop(): Promise<void> {
    await this.channel.request('stop', {}, SLOW);
  }

  /**
   * @param confirmed - a person has said yes to what the backend's `confirm` asks
   * @returns the loader's state with the switch asked for
   */
  async switchTo(loader: string, backend: string, confirmed = false): Promise<wire.LoaderState> {
    const args = confirmed ? { loader, backend, confirmed } : { loader, backend };
    return wire.decodeLoader((await this.channel.request('switch', args)).content);
  }

  /** @returns what is offered after this no */
  async decline(loader: string): Promise<AnalysisNews | null> {
    return decodeAnalysis((await this.channel.request('decline', { loader })).content);
  }

  /** @returns the loader's state with the knobs as they are set then */
  async set(loader: string, knobs: Partial<wire.Knobs>): Promise<wire.LoaderState> {
    return wire.decodeLoader((await this.channel.request('set', { loader, ...knobs })).content);
  }

  /**
   * @param confirmed - a person has said yes to replayed batches
   * @returns how far it is
   */
  async diagnose(loader: string, confirmed: boolean): Promise<AnalysisNews | null> {
    const args = confirmed ? { loader, confirmed } : { loader };
    return decodeAnalysis((await this.channel.request('diagnose', args)).content);
  }

  async cancelDiagnosis(): Promise<AnalysisNews | null> {
    return decodeAnalysis((await this.channel.request('diagnose', { cancel: true })).content);
  }

  /** @returns how far it is */
  async profile(loader: string, steps: number): Promise<AnalysisNews | null> {
    return decodeAnalysis((await this.channel.request('profile', { loader, steps })).content);
  }

  async mark(label: string): Promise<void> {
    await this.channel.request('mark', { label });
  }

  /** @returns the settings as they are then */
  async configure(changes: Changes): Promise<Settings | null> {
    const { content } = await this.channel.request('configure', { ...changes }, SLOW);
    return decodeSettings(content.settings);
  }

  /** @returns the recorded sessions that the kernel's machine has, newest first */
  async sessions(): Promise<readonly SessionEntry[]> {
    return decodeSessions((await this.channel.request('sessions', {}, SLOW)).content);
  }

  /** @returns by which name the recording in `path` can be asked about */
  async open(path: string): Promise<string> {
    return String((await this.channel.request('open', { path }, SLOW)).content.recorded);
  }

  /**
   * Ask for a few values once a second, or renew the lease.
   *
   * @returns seconds that the lease holds, what the monitor does, and the values now
   */
  async glance(): Promise<GlanceLease> {
    const { content } = await this.channel.request('glance', { client: this.client });
    const { lease, running, paused, session, glance, sidebar } = content;
    const known = typeof glance === 'object' && typeof session === 'string';
    return {
      lease: Number(lease),
      running: running === true,
      paused: paused === true,
      glance: known ? decodeGlance({ ...glance, session }) : null,
      sidebar: typeof sidebar === 'string' ? sidebar : null
    };
  }

  /** The page whose connection has this session id opens its sidebar. */
  answerSidebar(page: string): void {
    this.channel.tell('sidebar', { page });
  }

  async document(): Promise<ChartDocument> {
    const { content, buffers } = await this.channel.request('document', this.about({}), SLOW);
    const item: unknown = JSON.parse(decodeText(buffers[0], 'document'));
    return { schema: Number(content.schema), bokeh: String(content.bokeh), item };
  }

  async bokehjs(): Promise<{ version: string; text: string }> {
    const { content, buffers } = await this.channel.request('bokehjs', {}, SLOW);
    return { version: String(content.version), text: decodeText(buffers[0], 'bokehjs') };
  }

  async exportPage(): Promise<{ filename: string; html: string }> {
    const { content, buffers } = await this.channel.request('export', this.about({}), SLOW);
    return { filename: String(content.filename), html: decodeText(buffers[0], 'export') };
  }

  /** A file takes longer to answer from than what is in memory. */
  private get pace(): RequestOptions {
    return this.recorded === null ? {} : SLOW;
  }

  private about(args: Record<string, unknown>): Record<string, unknown> {
    return this.recorded === null ? args : { ...args, recorded: this.recorded };
  }
}
