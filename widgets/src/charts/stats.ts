/** The figures that matter as numbers, each with its last minute: images/s, share of waiting, CPU and GPU. */

import { columnsOf, coresOf, GPUS, IMAGES } from './columns.js';
import { element, setAttribute, setText } from '../page/dom.js';
import { count, isKnown, number } from '../analysis/figures.js';
import type { MonitorSource } from '../stream/source.js';
import type { Rows, Schema } from '../stream/page_messages.js';

/** Seconds that a number is the mean of; as the charts' (kernel_monitor/views/curves.py). */
const MEAN_S = 2;
/** Where nothing was measured in these seconds: the mean of these. */
const LATEST_S = 20;
const TREND_S = 60;
const TRENDS = 30;
/** Numbers that change more often cannot be read. */
const PERIOD_MS = 500;
const SVG = 'http://www.w3.org/2000/svg';
const [WIDTH, HEIGHT] = [60, 20];

/** One row, reduced to what is shown; NaN where there is nothing. */
interface Reading {
  readonly time: number;
  /** %, mean over the cores and over the GPUs. */
  readonly cpu: number;
  readonly gpu: number;
  /** Images per second of all loaders. */
  readonly images: number;
  /** ms of the steps that ended, of all loaders. */
  readonly wait: number;
  readonly step: number;
}

interface Columns {
  readonly schema: Schema;
  readonly cpu: readonly number[];
  readonly gpu: readonly number[];
  readonly images: readonly number[];
  readonly wait: readonly number[];
  readonly step: readonly number[];
}

/** A number over some readings. */
interface Stat {
  readonly value: number;
  readonly samples: number;
}

/** The last minute of a session, reduced. */
export class Readings {
  private columns: Columns | null = null;
  private readonly kept: Reading[] = [];

  /** Another session or schema: its history comes again. */
  clear(): void {
    this.columns = null;
    this.kept.length = 0;
  }

  get schema(): Schema | null {
    return this.columns?.schema ?? null;
  }

  /** Take rows as they come; rows older than the known ones are skipped. */
  take({ schema, seq, time, values }: Rows): void {
    if (this.columns?.schema !== schema) {
      this.columns = find(schema);
    }
    const { cpu, gpu, images, wait, step } = this.columns;
    const width = schema.series.length;
    const oldest = (time[seq.length - 1] ?? 0) - TREND_S; // a history has ten minutes
    for (let i = 0; i < seq.length; i += 1) {
      if (time[i]! > (this.kept.at(-1)?.time ?? oldest)) {
        const row = values.subarray(i * width, (i + 1) * width);
        this.kept.push({
          time: time[i]!,
          cpu: mean(row, cpu),
          gpu: mean(row, gpu),
          images: sum(row, images),
          wait: sum(row, wait),
          step: sum(row, step)
        });
      }
    }
    const since = (this.kept.at(-1)?.time ?? 0) - TREND_S;
    const old = this.kept.findIndex(reading => reading.time > since);
    if (old > 0) {
      this.kept.splice(0, old);
    }
  }

  /** The mean of the newest readings. */
  newest(of: (readings: readonly Reading[]) => Stat): Stat {
    const last = this.kept.at(-1)?.time ?? 0;
    const found = of(this.since(last - MEAN_S));
    return found.samples > 0 ? found : of(this.since(last - LATEST_S));
  }

  /** The means of the last minute, one for each two seconds; NaN where there is none. */
  trend(of: (readings: readonly Reading[]) => Stat): number[] {
    const last = this.kept.at(-1)?.time ?? 0;
    const width = TREND_S / TRENDS;
    return Array.from({ length: TRENDS }, (_, k) => {
      const end = last - (TRENDS - 1 - k) * width;
      return of(this.kept.filter(({ time }) => time > end - width && time <= end)).value;
    });
  }

  private since(time: number): readonly Reading[] {
    return this.kept.filter(reading => reading.time > time);
  }
}

/** What is shown: its label, how it is computed, its unit, and what its samples are. */
interface Kind {
  readonly label: string;
  readonly of: (readings: readonly Reading[]) => Stat;
  readonly unit: string;
  readonly samples: string;
  /** The most that there can be; the trend's own where there is no limit. */
  readonly most: number | null;
}

const KINDS: readonly Kind[] = [
  {
    label: 'images/s',
    of: readings => average(readings.map(({ images }) => images)),
    unit: '',
    samples: 'samples',
    most: null
  },
  {
    label: 'waiting for data',
    of: readings => {
      const steps = readings.filter(({ wait, step }) => Number.isFinite(wait) && step > 0);
      const total = steps.reduce((all, { step }) => all + step, 0);
      const wait = steps.reduce((all, reading) => all + reading.wait, 0);
      return { value: (100 * wait) / total, samples: steps.length };
    },
    unit: ' %',
    samples: 'samples in which a step ended',
    most: 100
  },
  {
    label: 'CPU',
    of: readings => average(readings.map(({ cpu }) => cpu)),
    unit: ' %',
    samples: 'samples',
    most: 100
  },
  {
    label: 'GPU',
    of: readings => average(readings.map(({ gpu }) => gpu)),
    unit: ' %',
    samples: 'samples',
    most: 100
  }
];

export class StatsView {
  readonly el = element('div', 'km-stats');
  private readonly readings = new Readings();
  private readonly tiles = KINDS.map(kind => new Tile(kind));
  private shownAt = -Infinity;

  constructor() {
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-label', 'Now');
    this.el.append(...this.tiles.map(({ el }) => el));
    this.el.hidden = true;
  }

  begin(): void {
    this.readings.clear();
    this.shownAt = -Infinity;
  }

  take(rows: Rows): void {
    this.readings.take(rows);
  }

  /** Show what there is now, at most twice a second; nothing of a session of the past. */
  update({ recorded, connection }: Pick<MonitorSource, 'recorded' | 'connection'>): void {
    const now = performance.now();
    const { schema } = this.readings;
    this.el.hidden =
      schema === null ||
      recorded !== null ||
      !['running', 'paused', 'stopped'].includes(connection.state);
    if (schema === null || this.el.hidden || now < this.shownAt + PERIOD_MS) {
      return;
    }
    this.shownAt = now;
    const cores = coresOf(schema).length;
    const gpus = columnsOf(schema, GPUS).length;
    this.tiles.forEach(tile => {
      const { label } = tile.kind;
      const isGpu = label === 'GPU';
      // Without a GPU there is no tile: the charts have one line that says why.
      tile.el.hidden = isGpu && gpus === 0 && schema.gpus.length === 0;
      tile.update(
        this.readings,
        label === 'CPU'
          ? `CPU, ${counted(cores, 'core')}`
          : isGpu && gpus > 1
            ? `${gpus} GPUs`
            : label,
        isGpu && gpus === 0 ? `none: ${whyNone(schema)}` : ''
      );
    });
  }
}

/** One number with its trend. */
class Tile {
  readonly el = element('div', 'km-stat');
  private readonly label = element('div', 'km-stat-label');
  private readonly value = element('div', 'km-stat-value');
  private readonly line = document.createElementNS(SVG, 'path');

  constructor(readonly kind: Kind) {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute('aria-hidden', 'true');
    svg.append(this.line);
    this.el.append(this.label, this.value, svg);
  }

  /** @param reason - why there is no number; empty: there is one */
  update(readings: Readings, label: string, reason: string): void {
    const { of, unit, samples, most } = this.kind;
    setText(this.label, label);
    this.el.classList.toggle('km-none', reason !== '');
    if (reason !== '') {
      setText(this.value, reason);
      setAttribute(this.el, 'title', reason);
      setAttribute(this.line, 'd', null);
      return;
    }
    const stat = readings.newest(of);
    const known = stat.samples > 0 && isKnown(stat.value);
    setText(this.value, known ? figure(stat.value, unit) : '–');
    setAttribute(
      this.el,
      'title',
      known ? `mean of ${MEAN_S} s: ${count(stat.samples)} ${samples}` : 'nothing measured yet'
    );
    setAttribute(this.line, 'd', path(readings.trend(of), most));
  }
}

function figure(value: number, unit: string): string {
  return unit === '' ? number(value) : `${count(value)}${unit}`;
}

/** Why no GPU reports its utilisation. */
function whyNone({ gpus }: Schema): string {
  const metric = gpus.map(({ reasons }) => reasons.utilisation).find(words => words !== undefined);
  return metric ?? 'not known yet';
}

/** `2 cores` */
function counted(n: number, what: string): string {
  return `${count(n)} ${what}${n === 1 ? '' : 's'}`;
}

/** A line through the trend, with gaps where there is nothing. */
function path(trend: readonly number[], most: number | null): string {
  const known = trend.filter(Number.isFinite);
  const top = most ?? Math.max(...known, 1e-9);
  let pen = 'M';
  let d = '';
  trend.forEach((value, k) => {
    if (!Number.isFinite(value)) {
      pen = 'M';
      return;
    }
    const x = (k / (trend.length - 1)) * WIDTH;
    const y = HEIGHT - 1 - (Math.min(value, top) / top) * (HEIGHT - 2);
    d += `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
    pen = 'L';
  });
  return d;
}

function average(values: readonly number[]): Stat {
  const known = values.filter(Number.isFinite);
  const total = known.reduce((a, b) => a + b, 0);
  return { value: known.length > 0 ? total / known.length : NaN, samples: known.length };
}

function sum(row: Float32Array, columns: readonly number[]): number {
  const known = columns.map(column => row[column]!).filter(Number.isFinite);
  return known.length > 0 ? known.reduce((a, b) => a + b, 0) : NaN;
}

function mean(row: Float32Array, columns: readonly number[]): number {
  return average(columns.map(column => row[column]!)).value;
}

function find(schema: Schema): Columns {
  return {
    schema,
    cpu: coresOf(schema),
    gpu: columnsOf(schema, GPUS),
    images: columnsOf(schema, IMAGES),
    wait: columnsOf(schema, /^(loader|job)\/[^/]+\/wait$/),
    step: columnsOf(schema, /^(loader|job)\/[^/]+\/step$/)
  };
}
