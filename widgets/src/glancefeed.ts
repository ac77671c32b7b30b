/** A glance made of the rows that a dashboard is sent anyway: no message of its own is needed then. */

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
   * @param recording - what the dashboard knows of it
   * @returns a glance once a second; null in between, and where the dashboard is not sent what it needs
   */
  take(session: string, rows: Rows, recording: Recording | null = null): Glance | null {
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
      recording
    };
  }
}

function find(schema: Schema): Columns {
  const names = schema.series.map(({ name }) => name);
  const where = (pattern: RegExp): number[] =>
    names.flatMap((name, column) => (pattern.test(name) ? [column] : []));
  const allowed = schema.host?.limits?.cpus;
  const cpu = where(/^cpu\/\d+\/busy$/);
  const mine = cpu.filter(column => allowed?.includes(Number(names[column]!.split('/')[1])));
  const limit = schema.host?.limits?.memory ?? null;
  const memory = names.indexOf(limit === null ? 'memory/used' : 'container/memory');
  return {
    schema,
    // Of a container whose memory is not among the columns only the kernel can tell.
    cpu: memory < 0 ? [] : mine.length > 0 ? mine : cpu,
    gpu: where(/^gpu\/\d+\/utilisation$/),
    gpuMemory: where(/^gpu\/\d+\/memory_used$/),
    memory,
    memoryTotal: limit ?? schema.host?.memory_total ?? null,
    images: where(/^loader\/[^/]+\/images$/)
  };
}

function sum(values: readonly number[]): number | null {
  return values.length === 0 ? null : values.reduce((a, b) => a + b, 0);
}

function mean(values: readonly number[]): number | null {
  const total = sum(values);
  return total === null ? null : total / values.length;
}
