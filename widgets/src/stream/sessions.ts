/** Texts about recorded sessions. */

import type { SessionEntry } from './protocol.js';

export type { RecordedLabel as Recorded, SessionEntry } from './protocol.js';

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
