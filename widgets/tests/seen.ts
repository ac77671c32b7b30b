/** A source over a fake kernel, and all that it told. */

import { vi } from 'vitest';

import type { Connection } from '../src/stream/connection.js';
import { KernelSource } from '../src/stream/kernel_source.js';
import type { Rows, Schema } from '../src/stream/page_messages.js';
import type { FakeMonitor } from './fakes.js';

/** Long enough for what answers at once, shorter than any of the source's own waits. */
export const soon = (): Promise<unknown> => vi.advanceTimersByTimeAsync(5);
export const after = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

export class Seen {
  readonly states: string[] = [];
  readonly opened: Schema[] = [];
  readonly seqs: number[] = [];
  constructor(readonly source: KernelSource) {
    source.connectionChanged.on((connection: Connection) => this.states.push(connection.state));
    source.opened.on(schema => this.opened.push(schema));
    source.arrived.on((rows: Rows) => this.seqs.push(...rows.seq));
  }
}

export async function open(monitor: FakeMonitor): Promise<Seen> {
  const seen = new Seen(new KernelSource(monitor.kernel));
  seen.source.setVisible(true);
  await soon();
  return seen;
}
