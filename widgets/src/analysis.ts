/**
 * What a kernel's analysis says (mirrors kernel_monitor/diagnose/model.py), and how far its *Diagnose* and its
 * profiling are (kernel_monitor/live/diagnosing.py, profiling.py). `tests/wire/golden/analysis.json` is an example.
 *
 * Shares are 0 to 1; what was not measured is null.
 */

import { need, object, WireError, type Json } from './check.js';

export type Kind =
  'input-bound' | 'copy-bound' | 'compute-bound' | 'residual-heavy' | 'undetermined';

/** What a change would bring or brought: shares of the step time saved; negative where steps get longer. */
export interface Gain {
  /** `loader`: no wait for data left; else the engine that would deliver. */
  readonly action: string;
  readonly low: number | null;
  readonly high: number | null;
  readonly measured: number | null;
  /** How it was reckoned. */
  readonly basis: string;
  /** What measured it, `Diagnose` or `switch`; empty of a prediction. Kernels of before it do not tell. */
  readonly by?: string;
}

/** A sentence that advises, and what it is for or against; the prose of all is `advice`. */
export interface Advice {
  readonly text: string;
  readonly points: readonly {
    readonly about: string;
    readonly target: string;
    readonly stance: 'for' | 'against' | 'neutral';
  }[];
  /** Key of the stretch that it is for; null: the session. */
  readonly stretch: string | null;
}

/** Where the time of a step goes. */
export interface Verdict {
  readonly kind: Kind;
  readonly stretch: string | null;
  readonly sentence: string;
  readonly advice: string;
  /** Kernels of before it do not tell. */
  readonly advised?: readonly Advice[];
  /** Of the step's time, by part: `wait`, `copy`, `compute`, `other`; those that are known. */
  readonly shares: Readonly<Record<string, number | null>>;
  readonly steps: number;
  readonly missing: readonly string[];
  readonly gains: readonly Gain[];
}

/** Of the stretch that a loader is in. */
export interface LiveVerdict extends Verdict {
  /** The loader's id. */
  readonly loader: string;
}

/** A switch that is offered to a loop that waits for its data, until somebody answers. */
export interface Offer {
  /** The loader's id. */
  readonly loader: string;
  /** The engine in use. */
  readonly source: string;
  readonly engine: string;
  readonly sentence: string;
  /** Null where nothing is known of it. */
  readonly gain: Gain | null;
}

/** What one engine delivered while it was measured. */
export interface Run {
  readonly backend: string;
  readonly steps: number;
  readonly seconds: number | null;
  readonly samples: number | null;
  /** Images per second, and the quartiles of each second's. */
  readonly rate: number | null;
  readonly rate_low: number | null;
  readonly rate_high: number | null;
  /** ms */
  readonly step: number | null;
  readonly wait: number | null;
  readonly of_ceiling: number | null;
  /** % */
  readonly cpu_p50: number | null;
  readonly cpu_p95: number | null;
  readonly gpu_p50: number | null;
  readonly problem: string | null;
}

/** What *Diagnose* found. */
export interface Diagnosis {
  readonly loader: string;
  readonly name: string;
  /** Seconds since the session began. */
  readonly began: number | null;
  readonly ended: number | null;
  readonly back_to: string | null;
  readonly synthetic: boolean;
  readonly message: string | null;
  readonly runs: readonly Run[];
  readonly predicted: readonly Gain[];
  readonly measured: readonly Gain[];
  readonly best: string | null;
  readonly sentence: string;
  /** What it could not say, and why. */
  readonly cannot: readonly string[];
}

/** How far something is that a person started and waits for. */
export interface Progress<T> {
  readonly state: 'running' | 'done' | 'failed' | 'cancelled';
  /** Id of the loader that it is about; null where that is not known yet. */
  readonly loader: string | null;
  readonly done: number;
  readonly total: number;
  /** For people: what happens, or why it ended. */
  readonly message: string;
  readonly result: T | null;
}

export interface Diagnosing extends Progress<Diagnosis> {
  /** The engine under measurement. */
  readonly backend: string | null;
  readonly seconds_left: number | null;
}

/** A CPU operator: `share` of the operators' time, its own ms and calls in all steps. */
export interface Operator {
  readonly name: string;
  readonly share: number | null;
  readonly self_ms: number | null;
  readonly count: number | null;
}

/** A GPU kernel: `share` of the kernels' time, ms and launches in all steps. */
export interface GpuKernel {
  readonly name: string;
  readonly share: number | null;
  readonly ms: number | null;
  readonly launches: number | null;
}

/** What *Profile 10 steps* found. */
export interface Profile {
  readonly loader: string | null;
  readonly name: string;
  readonly backend: string | null;
  /** Seconds since the session began. */
  readonly began: number | null;
  readonly steps: number;
  readonly cpu: readonly Operator[];
  readonly gpu: readonly GpuKernel[];
  /** Why no GPU kernels are listed; null where they are. */
  readonly gpu_reason: string | null;
  readonly wall_ms: number | null;
  /** Name of the file for ui.perfetto.dev. */
  readonly trace: string | null;
}

export type Profiling = Progress<Profile>;

/** The part of a subscription or a frame that tells of these; what is not named has not changed. */
export interface AnalysisNews {
  readonly verdict?: LiveVerdict | null;
  readonly offers?: readonly Offer[];
  readonly diagnosing?: Diagnosing | null;
  readonly profiling?: Profiling | null;
}

/** What a page knows of a kernel's analysis. */
export interface AnalysisState {
  /** The newest of each loader, by its id. */
  readonly verdicts: ReadonlyMap<string, LiveVerdict>;
  /** Kernels of before it do not tell. */
  readonly offers?: readonly Offer[];
  /** The newest of all; null or missing while no loop runs. */
  readonly verdict?: LiveVerdict | null;
  readonly diagnosing: Diagnosing | null;
  readonly profiling: Profiling | null;
}

/** @returns null where the kernel's half is too old to tell */
export function decodeAnalysis(json: Json): AnalysisNews | null {
  const news = {
    ...('verdict' in json ? { verdict: maybe(json.verdict, decodeVerdict) } : {}),
    ...('offers' in json ? { offers: decodeOffers(json.offers) } : {}),
    ...('diagnosing' in json ? { diagnosing: maybe(json.diagnosing, decodeDiagnosing) } : {}),
    ...('profiling' in json ? { profiling: maybe(json.profiling, decodeProfiling) } : {})
  };
  return Object.keys(news).length > 0 ? news : null;
}

export function decodeVerdict(value: unknown): LiveVerdict {
  const json = object(value, 'verdict');
  need(json, 'verdict', 'steps', 'loader kind sentence advice', 'missing gains');
  perhaps(object(json.shares, 'shares'), 'shares', Object.keys(json.shares as Json).join(' '));
  decodeGains(json.gains);
  return json as unknown as LiveVerdict;
}

function decodeOffers(value: unknown): readonly Offer[] {
  for (const entry of value as unknown[]) {
    const offer = object(entry, 'offer');
    need(offer, 'offer', '', 'loader source engine sentence');
    decodeGains(offer.gain === null ? [] : [offer.gain]);
  }
  return value as readonly Offer[];
}

export function decodeDiagnosing(value: unknown): Diagnosing {
  const json = object(value, 'diagnosing');
  perhaps(json, 'diagnosing', 'seconds_left');
  return decodeProgress(json, 'diagnosing', decodeDiagnosis) as unknown as Diagnosing;
}

export function decodeProfiling(value: unknown): Profiling {
  return decodeProgress(object(value, 'profiling'), 'profiling', decodeProfile);
}

export function decodeDiagnosis(value: unknown): Diagnosis {
  const json = object(value, 'diagnosis');
  need(json, 'diagnosis', '', 'loader sentence', 'runs predicted measured cannot');
  for (const entry of json.runs as unknown[]) {
    const run = object(entry, 'run');
    need(run, 'run', 'steps', 'backend');
    perhaps(run, 'run', 'rate rate_low rate_high step wait of_ceiling cpu_p50 cpu_p95 gpu_p50');
  }
  decodeGains(json.predicted);
  decodeGains(json.measured);
  return json as unknown as Diagnosis;
}

export function decodeProfile(value: unknown): Profile {
  const json = object(value, 'profile');
  need(json, 'profile', 'steps', '', 'cpu gpu');
  perhaps(json, 'profile', 'wall_ms');
  for (const entry of json.cpu as unknown[]) {
    const row = object(entry, 'operator');
    need(row, 'operator', '', 'name');
    perhaps(row, 'operator', 'share self_ms count');
  }
  for (const entry of json.gpu as unknown[]) {
    const row = object(entry, 'GPU kernel');
    need(row, 'GPU kernel', '', 'name');
    perhaps(row, 'GPU kernel', 'share ms launches');
  }
  return json as unknown as Profile;
}

function decodeProgress<T>(json: Json, what: string, decode: (value: unknown) => T): Progress<T> {
  need(json, what, 'done total', 'state');
  return {
    ...(json as unknown as Progress<T>),
    message: typeof json.message === 'string' ? json.message : '',
    result: maybe(json.result, decode)
  };
}

function decodeGains(value: unknown): void {
  for (const entry of value as unknown[]) {
    const gain = object(entry, 'gain');
    need(gain, 'gain', '', 'action basis');
    perhaps(gain, 'gain', 'low high measured');
  }
}

function maybe<T>(value: unknown, decode: (value: unknown) => T): T | null {
  return value === null || value === undefined ? null : decode(value);
}

/** Numbers that may be missing. */
function perhaps(json: Json, what: string, names: string): void {
  for (const name of names.split(' ')) {
    if (name !== '' && json[name] !== null && typeof json[name] !== 'number') {
      throw new WireError(`${what}: ${name} is neither a number nor null.`);
    }
  }
}
