/** The control commands, typed (docs/architecture.md, *Control*; mirrors kernel_monitor/stream/control.py). */

import { Channel, type RequestOptions } from './channel.js';
import * as wire from './wire.js';

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
  constructor(
    private readonly channel: Channel,
    private readonly client: string
  ) {}

  async hello(): Promise<wire.Hello> {
    return wire.decodeHello((await this.channel.request('hello')).content);
  }

  /** Subscribe, or renew the lease; `touch` tells that a person acted, which ends a pause. */
  async subscribe(touch = false): Promise<wire.Subscription> {
    const args = touch ? { client: this.client, touch } : { client: this.client };
    return wire.decodeSubscription((await this.channel.request('subscribe', args)).content);
  }

  /** Nobody waits for the answer: the page may be on its way out. */
  unsubscribe(): void {
    this.channel.tell('unsubscribe', { client: this.client });
  }

  async history(since: number): Promise<wire.History> {
    const { content, buffers } = await this.channel.request('history', { since });
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

  /** @returns the loader's state with the knobs as they are set then */
  async set(loader: string, knobs: Partial<wire.Knobs>): Promise<wire.LoaderState> {
    return wire.decodeLoader((await this.channel.request('set', { loader, ...knobs })).content);
  }

  async document(): Promise<ChartDocument> {
    const { content, buffers } = await this.channel.request('document', {}, SLOW);
    const item: unknown = JSON.parse(wire.decodeText(buffers[0], 'document'));
    return { schema: Number(content.schema), bokeh: String(content.bokeh), item };
  }

  async bokehjs(): Promise<{ version: string; text: string }> {
    const { content, buffers } = await this.channel.request('bokehjs', {}, SLOW);
    return { version: String(content.version), text: wire.decodeText(buffers[0], 'bokehjs') };
  }

  async exportPage(): Promise<{ filename: string; html: string }> {
    const { content, buffers } = await this.channel.request('export', {}, SLOW);
    return { filename: String(content.filename), html: wire.decodeText(buffers[0], 'export') };
  }
}
