/** A kernel at a glance: `CPU 45 % · GPU 87 % · 12.3/80 GB · 1,204 img/s`. */

import type { Figures } from './protocol.js';

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
      meaning: `The loop that trains: ${text} images per second`
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
