/** Recorded sessions, as a kernel tells of them (mirrors kernel_monitor/record/sessions.py), and the words for them. */

import { need, object } from './check.js';

/** A session's file. */
export interface SessionEntry {
  readonly path: string;
  readonly id: string;
  /** Unix seconds. */
  readonly started: number;
  readonly seconds: number;
  /** It is being recorded now. */
  readonly live: boolean;
  /** It ended by itself, and was not cut off. */
  readonly goodbye: boolean;
  /** Why it cannot be read; null where it can. */
  readonly problem?: string | null;
  /** It cannot be read, and not because it is of a later version. */
  readonly damaged?: boolean;
}

/** What a page shows of a session's file. */
export interface Recorded {
  readonly path: string;
  /** Unix seconds. */
  readonly started: number;
  readonly seconds: number;
  readonly live: boolean;
  readonly goodbye: boolean;
  /** Seconds that one row is the mean of, where the session is too long to be shown row by row. */
  readonly bin_s: number | null;
}

export function decodeSessions(content: unknown): readonly SessionEntry[] {
  const json = object(content, 'reply');
  need(json, 'sessions', '', '', 'sessions');
  for (const entry of json.sessions as unknown[]) {
    need(object(entry, 'session'), 'session', 'started seconds', 'path');
  }
  return json.sessions as readonly SessionEntry[];
}

export function decodeRecorded(value: unknown): Recorded {
  const json = object(value, 'recorded');
  need(json, 'recorded', 'started seconds', 'path');
  return json as unknown as Recorded;
}

/** `31 min 12 s`, `2 h 5 min`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [h, min, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h > 0) {
    return `${h} h ${min} min`;
  }
  return min > 0 ? `${min} min ${s} s` : `${s} s`;
}

/** `2026-11-20 14:03`, by this page's clock. */
export function moment(unixSeconds: number): string {
  const date = new Date(unixSeconds * 1000);
  const two = (n: number): string => String(n).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

type Described = Pick<SessionEntry, 'started' | 'seconds' | 'live' | 'goodbye'>;

/** `2026-11-20 14:03 · 31 min 12 s · ended without goodbye` */
export function entryText({ started, seconds, live, goodbye }: Described): string {
  const end = live ? ['still being recorded'] : goodbye ? [] : ['ended without goodbye'];
  return [moment(started), duration(seconds), ...end].join(' · ');
}

/** `Recorded 2026-11-20 14:03, 31 min 12 s, ended without goodbye — not live.` */
export function recordedText({ started, seconds, live, goodbye }: Described): string {
  const end = live ? ', still being recorded' : goodbye ? '' : ', ended without goodbye';
  const what = live ? 'a still picture, not live' : 'not live';
  return `Recorded ${moment(started)}, ${duration(seconds)}${end} — ${what}.`;
}
