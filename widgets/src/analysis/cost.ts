/** The cost of a loader's images at a price per hour, from its rate of the last minute. */

import { count, money, number } from './figures.js';
import { INTERVAL } from '../charts/row_table.js';
import type { LoaderState, Rows, Schema, Settings } from '../stream/page_messages.js';

/** Seconds up to the last delivery over which the rate is computed. */
const WINDOW_S = 60;

interface Delivery {
  readonly time: number;
  readonly images: number;
}

/** Columns of a schema: each loader's images per second, and what a row covers. */
interface Columns {
  readonly schema: Schema;
  readonly loaders: readonly (readonly [string, number])[];
  readonly interval: number;
}

export class Deliveries {
  private columns: Columns | null = null;
  private byLoader = new Map<string, Delivery[]>();

  /** Another session. */
  clear(): void {
    this.byLoader.clear();
  }

  /** Take rows as they come; rows older than the known ones are skipped. */
  take({ schema, seq, time, values }: Rows): void {
    if (this.columns?.schema !== schema) {
      this.columns = find(schema);
    }
    const { loaders, interval } = this.columns;
    const width = schema.series.length;
    for (const [loader, column] of loaders) {
      const known = this.byLoader.get(loader) ?? [];
      this.byLoader.set(loader, known);
      for (let i = 0; i < seq.length; i += 1) {
        const rate = values[i * width + column]!;
        if (rate > 0 && time[i]! > (known.at(-1)?.time ?? -Infinity)) {
          const covered = interval < 0 ? NaN : values[i * width + interval]!;
          known.push({
            time: time[i]!,
            images: rate * (covered > 0 ? covered : schema.interval)
          });
        }
      }
      const since = (known.at(-1)?.time ?? 0) - WINDOW_S;
      const old = known.findIndex(delivery => delivery.time > since);
      if (old > 0) {
        known.splice(0, old);
      }
    }
  }

  /** Images per second of the last minute in which the loader delivered; null before its second batch. */
  rate(loader: string): number | null {
    const known = this.byLoader.get(loader) ?? [];
    const [first, last] = [known[0], known.at(-1)];
    if (first === undefined || last === undefined || last.time <= first.time) {
      return null;
    }
    // The first batch was made before the time that is counted.
    const images = known.reduce((sum, delivery) => sum + delivery.images, -first.images);
    return images / (last.time - first.time);
  }
}

/** `0.0123 € per 1,000 images · 0.63 € per epoch of 51,200, at 412 images/s`; empty without price or rate. */
export function costText(
  settings: Settings | null,
  { planned, backend, nodes }: LoaderState,
  rate: number | null
): string {
  const own = settings?.price ?? null;
  if (own === null || rate === null || rate <= 0) {
    return '';
  }
  const beside = backend === 'ray' ? (nodes ?? 0) : 0;
  const price = own + beside * (settings?.node_price ?? 0);
  const currency = settings?.currency ?? '';
  const image = price / 3600 / rate;
  const epoch =
    planned === null ? '' : ` · ${money(image * planned, currency)} per epoch of ${count(planned)}`;
  const machines = beside > 0 ? `, on this machine and ${beside} beside it` : '';
  return `${money(image * 1000, currency)} per 1,000 images${epoch}, at ${number(rate)} images/s${machines}`;
}

function find(schema: Schema): Columns {
  const loaders: [string, number][] = [];
  schema.series.forEach(({ name }, column) => {
    const found = /^loader\/(.+)\/images$/.exec(name);
    if (found !== null) {
      loaders.push([found[1]!, column]);
    }
  });
  return {
    schema,
    loaders,
    interval: schema.series.findIndex(({ name }) => name === INTERVAL)
  };
}
