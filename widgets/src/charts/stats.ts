/** The figures that matter as numbers, each with its last minute: images/s, share of waiting, CPU and GPU. */

import { element, setAttribute, setText } from '../page/dom.js';
import { count, isKnown, number } from '../analysis/figures.js';
import { mainLoader } from '../analysis/analysis.js';
import type { MonitorSource } from '../stream/source.js';
import type { Rows, Schema } from '../stream/page_messages.js';

/** Seconds that a number is the mean of; as the charts' (kernel_monitor/views/curves.py). */
const MEAN_S = 2;
/** If no step ended in the last `MEAN_S` while a cell runs, a number is the mean of these seconds. */
const LATEST_S = 20;
const TREND_S = 60;
const TRENDS = 30;
/** Numbers that change more often cannot be read. */
const PERIOD_MS = 500;
/** The series of a loop of this process, or of a job whose ranks joined it. */
const LOOP = /^((?:loader|job)\/[^/]+)\/images$/;
const GPUS = /^gpu\/\d+\/utilisation$/;
const SVG = 'http://www.w3.org/2000/svg';
const [WIDTH, HEIGHT] = [60, 20];

/** One row, reduced to what is shown; NaN where there is nothing. */
interface Reading {
  readonly time: number;
  /** %, mean over the cores and over the GPUs. */
  readonly cpu: number;
  readonly gpu: number;
  /** In the order of `Columns.loops`. */
  readonly loops: readonly Loop[];
}

/** The figures of one loader, or of all ranks of a job. */
interface Loop {
  /** Images per second. */
  readonly images: number;
  /** ms of the steps that ended. */
  readonly wait: number;
  readonly step: number;
}

interface Columns {
  readonly schema: Schema;
  readonly cpu: readonly number[];
  readonly gpu: readonly number[];
  /** Their series begin with these: `loader/loader-1`, `job/1`. */
  readonly loops: readonly string[];
  /** Of each one's images, wait and step; -1 for none. */
  readonly of: readonly (readonly [number, number, number])[];
}

/** A number over some readings. */
interface Stat {
  readonly value: number;
  readonly samples: number;
}

/** The last minute of a session, reduced. */
class Readings {
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
    const { cpu, gpu, of } = this.columns;
    const width = schema.series.length;
    const oldest = (time[seq.length - 1] ?? 0) - TREND_S; // a history has ten minutes
    for (let i = 0; i < seq.length; i += 1) {
      if (time[i]! > (this.kept.at(-1)?.time ?? oldest)) {
        const row = values.subarray(i * width, (i + 1) * width);
        this.kept.push({
          time: time[i]!,
          cpu: mean(row, cpu),
          gpu: mean(row, gpu),
          loops: of.map(([images, wait, step]) => ({
            images: row[images] ?? NaN,
            wait: row[wait] ?? NaN,
            step: row[step] ?? NaN
          }))
        });
      }
    }
    const since = (this.kept.at(-1)?.time ?? 0) - TREND_S;
    const old = this.kept.findIndex(reading => reading.time > since);
    if (old > 0) {
      this.kept.splice(0, old);
    }
  }

  /** Return the place of a loader's loop in the readings; those of all loops where that is not known. */
  placesOf(loader: string | null): readonly number[] {
    const { loops = [] } = this.columns ?? {};
    const job = /^job-(\d+)\//.exec(loader ?? '')?.[1];
    const place = loops.indexOf(job === undefined ? `loader/${loader}` : `job/${job}`);
    return place < 0 ? loops.map((_, k) => k) : [place];
  }

  /** The mean of the newest readings, over so many seconds. */
  newest(of: Measure, seconds: number, loops: readonly number[]): Stat {
    return of(this.since((this.kept.at(-1)?.time ?? 0) - seconds), loops);
  }

  /** Seconds over which the figures of these loops are taken; 0: none of them runs. */
  span(loops: readonly number[], busy: boolean): number {
    let ended = -Infinity;
    for (const { time, loops: all } of this.kept) {
      ended = loops.some(k => all[k]!.step > 0) ? time : ended;
    }
    const ago = (this.kept.at(-1)?.time ?? 0) - ended;
    return ago < MEAN_S ? MEAN_S : busy && ago < LATEST_S ? LATEST_S : 0;
  }

  /** The means of the last minute, one for each two seconds; NaN where there is none. */
  trend(of: Measure, loops: readonly number[]): number[] {
    const last = this.kept.at(-1)?.time ?? 0;
    const width = TREND_S / TRENDS;
    return Array.from({ length: TRENDS }, (_, k) => {
      const end = last - (TRENDS - 1 - k) * width;
      return of(
        this.kept.filter(({ time }) => time > end - width && time <= end),
        loops
      ).value;
    });
  }

  private since(time: number): readonly Reading[] {
    return this.kept.filter(reading => reading.time > time);
  }
}

/** A number over readings; `loops`: of these. */
type Measure = (readings: readonly Reading[], loops: readonly number[]) => Stat;

/** A kind of number: its label, its computation, its unit, and the name of its samples. */
interface Kind {
  readonly label: string;
  /** Of a loop: its name in full. */
  readonly what?: string;
  readonly of: Measure;
  readonly unit: string;
  readonly samples: string;
  /** The most that there can be; the trend's own where there is no limit. */
  readonly most: number | null;
}

const KINDS: readonly Kind[] = [
  {
    label: 'images/s',
    what: 'images per second of the wall clock',
    of: (readings, at) => average(readings.map(({ loops }) => sum(at.map(k => loops[k]!.images)))),
    unit: '',
    samples: 'samples',
    most: null
  },
  {
    label: 'waiting for data',
    what: 'share of the steps’ time that waits for data',
    of: (readings, at) => {
      const all = readings.map(({ loops }) => ({
        wait: sum(at.map(k => loops[k]!.wait)),
        step: sum(at.map(k => loops[k]!.step))
      }));
      const steps = all.filter(({ wait, step }) => Number.isFinite(wait) && step > 0);
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
  update({ recorded, connection, loaders, analysis, busy }: Shown): void {
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
    const id = mainLoader(loaders, analysis);
    const main = loaders.find(loader => loader.id === id);
    const loops = this.readings.placesOf(main?.id ?? null);
    const span = this.readings.span(loops, busy);
    const name = loaders.length > 1 ? (main?.name ?? '') : '';
    this.tiles.forEach(tile => {
      const { label } = tile.kind;
      const isGpu = label === 'GPU';
      // Without a GPU there is no tile: the charts have one line that says why.
      tile.el.hidden = isGpu && gpus === 0 && schema.gpus.length === 0;
      if (tile.kind.what !== undefined) {
        tile.updateLoop(this.readings, name, loops, span);
        return;
      }
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

type Shown = Pick<MonitorSource, 'recorded' | 'connection' | 'loaders' | 'analysis' | 'busy'>;

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

  /**
   * Show a figure of the main loop.
   *
   * @param name - of its loader, where there are several
   * @param span - seconds that it is of; 0: no loop runs
   */
  updateLoop(readings: Readings, name: string, loops: readonly number[], span: number): void {
    const { label, what = '' } = this.kind;
    const whose = name === '' ? what : `${name}: ${what}`;
    setText(this.label, name === '' ? label : `${label}, ${name}`);
    if (span === 0) {
      setText(this.value, '–');
      setAttribute(this.el, 'title', `${whose}; no loop runs now`);
    } else {
      this.show(readings, span, loops, `${whose}, `);
    }
    setAttribute(this.line, 'd', path(readings.trend(this.kind.of, loops), this.kind.most));
  }

  /** @param reason - why there is no number; empty: there is one */
  update(readings: Readings, label: string, reason: string): void {
    setText(this.label, label);
    this.el.classList.toggle('km-none', reason !== '');
    if (reason !== '') {
      setText(this.value, reason);
      setAttribute(this.el, 'title', reason);
      setAttribute(this.line, 'd', null);
      return;
    }
    this.show(readings, MEAN_S, [], '');
    setAttribute(this.line, 'd', path(readings.trend(this.kind.of, []), this.kind.most));
  }

  private show(readings: Readings, span: number, loops: readonly number[], what: string): void {
    const { of, unit, samples } = this.kind;
    const stat = readings.newest(of, span, loops);
    const known = stat.samples > 0 && isKnown(stat.value);
    setText(this.value, known ? figure(stat.value, unit) : '–');
    setAttribute(
      this.el,
      'title',
      known
        ? `${what}mean of the last ${span} s: ${count(stat.samples)} ${samples}`
        : 'nothing measured yet'
    );
  }
}

function figure(value: number, unit: string): string {
  return unit === '' ? number(value) : `${count(value)}${unit}`;
}

/** Return the reason why no GPU reports its utilisation. */
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

function sum(values: readonly number[]): number {
  const known = values.filter(Number.isFinite);
  return known.length > 0 ? known.reduce((a, b) => a + b, 0) : NaN;
}

export function mean(row: Float32Array, columns: readonly number[]): number {
  return average(columns.map(column => row[column]!)).value;
}

function find(schema: Schema): Columns {
  const names = schema.series.map(({ name }) => name);
  const loops = names.flatMap(name => LOOP.exec(name)?.[1] ?? []);
  return {
    schema,
    cpu: coresOf(schema),
    gpu: columnsOf(schema, GPUS),
    loops,
    of: loops.map(loop => [
      names.indexOf(`${loop}/images`),
      names.indexOf(`${loop}/wait`),
      names.indexOf(`${loop}/step`)
    ])
  };
}

/** The columns whose series' names match. */
function columnsOf(schema: Schema, pattern: RegExp): number[] {
  return schema.series.flatMap(({ name }, column) => (pattern.test(name) ? [column] : []));
}

/** The columns of the cores that the kernel may use; of all cores where that is not known. */
export function coresOf(schema: Schema): number[] {
  const all = columnsOf(schema, /^cpu\/\d+\/busy$/);
  const allowed = schema.host.limits?.cpus;
  const mine = all.filter(column =>
    allowed?.includes(Number(schema.series[column]!.name.split('/')[1]))
  );
  return mine.length > 0 ? mine : all;
}
