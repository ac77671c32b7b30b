/** The control commands, typed (docs/messages.md, *Control*; mirrors kernel_monitor/control.py). */

import { Channel, NotLoaded, type RequestOptions } from './channel.js';
import { decode, decodeText } from './message_check.js';
import * as wire from './page_messages.js';
import type * as protocol from './protocol.js';
import type { Changes } from './page_messages.js';

/** A chart document as `bokeh.embed.json_item` gives it. */
export interface ChartDocument {
  /** Version of the schema that the charts have. */
  readonly schema: number;
  /** Version of the Bokeh that made it. */
  readonly bokeh: string;
  readonly item: unknown;
}

/** Commands that a worker thread of the kernel answers. */
const SLOW: RequestOptions = { later: true, timeout: 120_000 };

/** Every method rejects with `NotLoaded`, `RequestTimeout`, `KernelGone`, `KernelError` or `WireError`. */
export class Commands {
  /** The opened recording that commands are about; null for the running session. */
  recorded: string | null = null;

  constructor(
    private readonly channel: Channel,
    private readonly client: string
  ) {}

  async hello(): Promise<wire.Hello> {
    return wire.decodeHello((await this.channel.request('hello')).content);
  }

  async isLoaded(): Promise<boolean> {
    try {
      await this.hello();
      return true;
    } catch (error) {
      if (error instanceof NotLoaded) {
        return false;
      }
      throw error;
    }
  }

  /** Subscribe, or renew the lease; `touch`: a person acted, which ends a pause. */
  async subscribe(touch = false): Promise<wire.Subscription> {
    // Drawn are several rows at once, and each message costs page, server and kernel more than its rows.
    const args = this.about({ client: this.client, bundled: true, ...(touch ? { touch } : {}) });
    const reply = await this.channel.request('subscribe', args, this.pace);
    return decode('SubscribeReply', reply.content);
  }

  /** Does not wait for the reply: the page may be being closed. */
  unsubscribe(): void {
    this.channel.post('unsubscribe', { client: this.client });
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
   * @param confirmed - a person has confirmed what the backend's `confirm` asks
   * @returns the loader's state with the switch asked for
   */
  async switchTo(loader: string, backend: string, confirmed = false): Promise<wire.LoaderState> {
    const args = confirmed ? { loader, backend, confirmed } : { loader, backend };
    return decode('LoaderReply', (await this.channel.request('switch', args)).content).loader;
  }

  /** @returns the offers that are left */
  async decline(loader: string): Promise<protocol.Findings> {
    return decode('FindingsReply', (await this.channel.request('decline', { loader })).content);
  }

  /** @returns the loader's state with the knobs as they are set then */
  async set(loader: string, knobs: Partial<wire.Knobs>): Promise<wire.LoaderState> {
    const reply = await this.channel.request('set', { loader, ...knobs });
    return decode('LoaderReply', reply.content).loader;
  }

  /**
   * @param confirmed - a person has confirmed replayed batches
   * @returns how far it is
   */
  async diagnose(loader: string, confirmed: boolean): Promise<protocol.Findings> {
    const args = confirmed ? { loader, confirmed } : { loader };
    return decode('FindingsReply', (await this.channel.request('diagnose', args)).content);
  }

  /** @returns how far it is */
  async tune(loader: string): Promise<protocol.Findings> {
    return decode('FindingsReply', (await this.channel.request('tune', { loader })).content);
  }

  /** @returns a Python file that delivers the loader's batches without this package */
  async code(loader: string): Promise<protocol.CodeReply> {
    return decode('CodeReply', (await this.channel.request('code', { loader })).content);
  }

  async undoTune(): Promise<protocol.Findings> {
    const reply = await this.channel.request('tune', { undo: true });
    return decode('FindingsReply', reply.content);
  }

  async cancelDiagnosis(): Promise<protocol.Findings> {
    const reply = await this.channel.request('diagnose', { cancel: true });
    return decode('FindingsReply', reply.content);
  }

  /** @returns how far it is */
  async profile(loader: string, steps: number): Promise<protocol.Findings> {
    const reply = await this.channel.request('profile', { loader, steps });
    return decode('FindingsReply', reply.content);
  }

  async mark(label: string): Promise<void> {
    await this.channel.request('mark', { label });
  }

  /** @returns the settings as they are then */
  async configure(changes: Changes): Promise<protocol.SettingsState> {
    const { content } = await this.channel.request('configure', { ...changes }, SLOW);
    return decode('ConfigureReply', content).settings;
  }

  /** @returns the recorded sessions that the kernel's machine has, newest first */
  async sessions(): Promise<readonly protocol.SessionEntry[]> {
    const { content } = await this.channel.request('sessions', {}, SLOW);
    return decode('SessionsReply', content).sessions;
  }

  /** @returns by which name the recording in `path` can be asked about */
  async open(path: string): Promise<string> {
    const { content } = await this.channel.request('open', { path }, SLOW);
    return decode('OpenReply', content).recorded;
  }

  /** Ask for a few values once a second, or renew the lease. */
  async glance(): Promise<protocol.GlanceReply> {
    const { content } = await this.channel.request('glance', { client: this.client });
    return decode('GlanceReply', content);
  }

  /** The page whose connection has this session id opens its sidebar. */
  answerSidebar(page: string): void {
    this.channel.post('sidebar', { page });
  }

  async document(): Promise<ChartDocument> {
    const { content, buffers } = await this.channel.request('document', this.about({}), SLOW);
    const item: unknown = JSON.parse(decodeText(buffers[0], 'document'));
    const { schema, bokeh } = decode('DocumentReply', content);
    return { schema, bokeh, item };
  }

  async bokehjs(): Promise<{ version: string; text: string }> {
    const { content, buffers } = await this.channel.request('bokehjs', {}, SLOW);
    const { version } = decode('BokehReply', content);
    return { version, text: decodeText(buffers[0], 'bokehjs') };
  }

  async exportPage(): Promise<{ filename: string; html: string }> {
    const { content, buffers } = await this.channel.request('export', this.about({}), SLOW);
    const { filename } = decode('ExportReply', content);
    return { filename, html: decodeText(buffers[0], 'export') };
  }

  /** A file takes longer to answer from than what is in memory. */
  private get pace(): RequestOptions {
    return this.recorded === null ? {} : SLOW;
  }

  private about(args: Record<string, unknown>): Record<string, unknown> {
    return this.recorded === null ? args : { ...args, recorded: this.recorded };
  }
}
