/**
 * What a person may set in a kernel's monitor, and where its session is recorded
 * (mirrors kernel_monitor/live/settings.py and kernel_monitor/store/charts.py).
 */

import { need, object } from './check.js';

export interface Settings {
  /** Seconds between two rows. */
  readonly interval: number;
  /** Seconds that the kernel keeps for its pages. */
  readonly history: number;
  /** Ids of the charts that are shown. */
  readonly charts: readonly string[];
  readonly record: boolean;
  /** The folder of the recordings, where one was asked for. */
  readonly record_to: string | null;
  /** What the machine costs per hour; null where nobody said, missing where the kernel's half is too old. */
  readonly price?: number | null;
  /** What stands before or after the price's figures. */
  readonly currency?: string;
}

/** What `configure` takes: what is left out stays as it is. */
export type Changes = Partial<Pick<Settings, 'interval' | 'history' | 'charts'>> & {
  /** Whether; or the folder, which says yes and where (empty: the usual one). */
  readonly record?: boolean | string;
  /** Per hour, with its currency or without (`2.50`, `2.50 €`); an empty text takes it away. */
  readonly price?: number | string;
};

/** A chart that can be chosen. */
export interface ChartChoice {
  readonly id: string;
  readonly title: string;
  /** Whether this machine has what the chart shows. */
  readonly available: boolean;
  /** Shown unless something else was chosen. */
  readonly default: boolean;
  /** Why it is not available, where the kernel knows. */
  readonly reason?: string | null;
}

/** What becomes of the session's recording. */
export interface Recording {
  /** `moved`: it is recorded, elsewhere than wanted. */
  readonly state: 'recording' | 'moved' | 'stopped' | 'off';
  readonly path: string | null;
  /** For people: cause and remedy; null where there is nothing to say. */
  readonly message: string | null;
}

/** @returns null where the kernel's half is too old to have settings */
export function decodeSettings(value: unknown): Settings | null {
  if (value === null || value === undefined) {
    return null;
  }
  const json = object(value, 'settings');
  need(json, 'settings', 'interval history', '', 'charts');
  return json as unknown as Settings;
}

export function decodeCharts(value: unknown): readonly ChartChoice[] {
  if (value === null || value === undefined) {
    return [];
  }
  need({ charts: value }, 'reply', '', '', 'charts');
  for (const entry of value as unknown[]) {
    need(object(entry, 'chart'), 'chart', '', 'id title');
  }
  return value as readonly ChartChoice[];
}

export function decodeRecording(value: unknown): Recording | null {
  if (value === null || value === undefined) {
    return null;
  }
  const json = object(value, 'recording');
  need(json, 'recording', '', 'state');
  return {
    state: json.state as Recording['state'],
    path: typeof json.path === 'string' ? json.path : null,
    message: typeof json.message === 'string' && json.message !== '' ? json.message : null
  };
}
