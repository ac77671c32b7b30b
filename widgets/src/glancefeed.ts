/** A glance made of the rows that a dashboard is sent anyway: no message of its own is needed then. */

import type { Kind } from './analysis.js';
import { columnsOf, coresOf, GPUS, IMAGES } from './columns.js';
import type { Glance } from './glance.js';
import type { Recording } from './settings.js';
import type { Rows, Schema } from './wire.js';

const PERIOD_MS = 1000;

/** Columns of one schema, by what they are for. */
interface Columns {
  readonly schema: Schema;
  readonly cpu: readonly number[];
  readonly gpu: readonly number[];
  readonly gpuMemory: readonly number[];
  readonly memory: number;
  readonly memoryTotal: number | null;
  readonly images: readonly number[];
}

export class GlanceFeed {
  private columns: Columns | null = null;
  private images: number[] = [];
  private at = -Infinity;

  /**
   * Take rows as they come.
   *
   * @param recording, kind - what the dashboard knows of the recording and of the verdict now
   * @returns a glance once a second; null in between, and where the dashboard is not sent what it needs
   */
  take(
    session: string,
    rows: Rows,
    recording: Recording | null = null,
    kind: Kind | null = null
  ): Glance | null {
    const { schema, values, seq } = rows;
    if (this.columns?.schema !== schema) {
      this.columns = find(schema);
      this.images = [];
    }
    const { cpu, gpu, gpuMemory, memory, images } = this.columns;
    if (cpu.length === 0 || seq.length === 0) {
      return null;
    }
    const width = schema.series.length;
    const row = values.subarray((seq.length - 1) * width, seq.length * width);
    const pick = (columns: readonly number[]): number[] =>
      columns.map(column => row[column]!).filter(Number.isFinite);
    const delivered = sum(pick(images));
    if (delivered !== null) {
      // One row's rate is of one batch or none.
      this.images.push(delivered);
    }
    const now = performance.now();
    if (now < this.at + PERIOD_MS) {
      return null;
    }
    this.at = now;
    const rate = mean(this.images);
    this.images = [];
    return {
      session,
      cpu: mean(pick(cpu)),
      gpu: mean(pick(gpu)),
      memory_used: sum(pick([memory])),
      memory_total: this.columns.memoryTotal,
      gpu_memory_used: sum(pick(gpuMemory)),
      gpu_memory_total: sum((schema.gpus ?? []).flatMap(({ memory_total: b }) => b ?? [])),
      images: rate,
      kind,
      recording
    };
  }
}

function find(schema: Schema): Columns {
  const limit = schema.host?.limits?.memory ?? null;
  const used = limit === null ? 'memory/used' : 'container/memory';
  const memory = schema.series.findIndex(({ name }) => name === used);
  return {
    schema,
    // Of a container whose memory is not among the columns only the kernel can tell.
    cpu: memory < 0 ? [] : coresOf(schema),
    gpu: columnsOf(schema, GPUS),
    gpuMemory: columnsOf(schema, /^gpu\/\d+\/memory_used$/),
    memory,
    memoryTotal: limit ?? schema.host?.memory_total ?? null,
    images: columnsOf(schema, IMAGES)
  };
}

function sum(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((a, b) => a + b, 0);
}

function mean(values: readonly number[]): number | null {
  const total = sum(values);
  return total === null ? null : total / values.length;
}
