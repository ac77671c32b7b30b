/** What a person may set in a kernel's monitor, and where its session is recorded. */

import type { SettingsState as Settings } from './protocol.js';

export type {
  ChartState as ChartChoice,
  RecordingState as Recording,
  SettingsState as Settings
} from './protocol.js';

/** What `configure` takes: what is left out stays as it is. */
export type Changes = Partial<Pick<Settings, 'interval' | 'history' | 'charts' | 'unfolded'>> & {
  /** Whether to record; or the folder to record to (empty: the usual one). */
  readonly record?: boolean | string;
  /** Per hour, with its currency or without (`2.50`, `2.50 €`); an empty text takes it away. */
  readonly price?: number | string;
};
