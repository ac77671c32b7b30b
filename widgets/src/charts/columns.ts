/** Which columns of a schema hold what. */

import type { Schema } from '../stream/page_messages.js';

/** The columns whose series' names match. */
export function columnsOf(schema: Schema, pattern: RegExp): number[] {
  return schema.series.flatMap(({ name }, column) => (pattern.test(name) ? [column] : []));
}

/** Of the cores that the kernel may use; of all where that is not known. */
export function coresOf(schema: Schema): number[] {
  const all = columnsOf(schema, /^cpu\/\d+\/busy$/);
  const allowed = schema.host.limits?.cpus;
  const mine = all.filter(column =>
    allowed?.includes(Number(schema.series[column]!.name.split('/')[1]))
  );
  return mine.length > 0 ? mine : all;
}

export const GPUS = /^gpu\/\d+\/utilisation$/;
