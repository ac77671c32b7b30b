/** A kernel at a glance: `CPU 45 % · GPU 87 % · 12.3/80 GB · 1,204 img/s`. */

import type { Kind } from './analysis.js';
import { need, object } from './check.js';
import { decodeRecording, type Recording } from './settings.js';

/** The newest values of a few series; null where there is none. */
export interface Glance {
  readonly session: string;
  /** Mean over the cores that the kernel may use, in %. */
  readonly cpu: number | null;
  /** Mean over the GPUs, in %. */
  readonly gpu: number | null;
  /** Bytes of the host's memory, or of the container's. */
  readonly memory_used: number | null;
  readonly memory_total: number | null;
  /** Bytes of all GPUs. */
  readonly gpu_memory_used: number | null;
  readonly gpu_memory_total: number | null;
  /** Images per second of all loaders. */
  readonly images: number | null;
  /** Of the verdict on the loop as it runs; null where none runs. */
  readonly kind: Kind | null;
  readonly recording: Recording | null;
}

export function decodeGlance(content: unknown): Glance {
  const json = object(content, 'glance');
  need(json, 'glance', '', 'session');
  const value = (name: string): number | null =>
    typeof json[name] === 'number' && Number.isFinite(json[name]) ? json[name] : null;
  return {
    session: json.session as string,
    cpu: value('cpu'),
    gpu: value('gpu'),
    memory_used: value('memory_used'),
    memory_total: value('memory_total'),
    gpu_memory_used: value('gpu_memory_used'),
    gpu_memory_total: value('gpu_memory_total'),
    images: value('images'),
    kind: typeof json.kind === 'string' ? (json.kind as Kind) : null,
    recording: decodeRecording(json.recording)
  };
}

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const TENTH = new Intl.NumberFormat('en-US', {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1
});

/** One part of the line, and what it says in full. */
export interface GlancePart {
  readonly text: string;
  readonly meaning: string;
}

/** What there is to say; a part whose values do not exist is left out. */
export function glanceParts(glance: Glance): GlancePart[] {
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
    parts.push({ text: `${text} img/s`, meaning: `Loaders: ${text} images per second` });
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
