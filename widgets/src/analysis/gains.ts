/** Predicted and measured gains, in words. */

import type { Gain } from './analysis.js';
import { element, setText } from '../page/dom.js';
import { isKnown } from './figures.js';

/** Two rates this close to each other are called alike (as in kernel_monitor/analysis/number_text.py). */
const ALIKE = 0.05;

/** `dali-cpu: expected 1.5 to 2.2 × faster`, or as it was measured: `dali-cpu: measured 1.92 × faster`.
 * @param both - also what was expected of what was measured; else `low` and `high` are the measurement's own spread
 */
export function gainText({ action, low, high, measured }: Gain, both = false): string {
  const what = action === 'loader' ? 'with data that is always ready' : action;
  const known = isKnown(measured);
  const parts = [
    ...(isKnown(low) && isKnown(high) && (both || !known)
      ? [`expected ${between(low, high)}`]
      : []),
    ...(known ? [`measured ${factor(ratio(measured))}`] : [])
  ];
  return `${what}: ${parts.length > 0 ? parts.join('; ') : 'not known'}`;
}

/** A list of gains, each with how it was computed. */
export class GainList {
  readonly el = element('ul', 'km-gains');

  /** @param both - see `gainText` */
  update(gains: readonly Gain[], both = false): void {
    while (this.el.children.length > gains.length) {
      this.el.lastElementChild!.remove();
    }
    gains.forEach((gain, i) => {
      const line = this.el.children[i] ?? this.el.appendChild(gainLine());
      setText(line.children[0]!, gainText(gain, both));
      setText(line.children[1]!, gain.basis);
    });
    this.el.hidden = gains.length === 0;
  }
}

function gainLine(): HTMLElement {
  const line = element('li');
  line.append(element('span'), element('span', 'km-basis'));
  return line;
}

/** How many times as fast, for a share of the step time saved. */
function ratio(saved: number): number {
  return 1 / Math.max(1 - saved, 0.01);
}

/** `1.48 × faster` */
function factor(times: number): string {
  if (Math.abs(times - 1) < ALIKE) {
    return `about as fast, ${times.toFixed(2)} ×`;
  }
  return times > 1 ? `${times.toFixed(2)} × faster` : `${(1 / times).toFixed(2)} × slower`;
}

/** `1.1 to 2.0 × faster`, `between 1.3 × slower and 1.2 × faster`, `up to 1.3 × slower`
 * (as `speed` in kernel_monitor/analysis/gains.py).
 */
function between(low: number, high: number): string {
  const ends = [ratio(Math.min(low, high)), ratio(Math.max(low, high))] as const;
  const [least, most] = [times(ends[0]), times(ends[1])];
  if (least === '1.0' && most === '1.0') {
    return 'about as fast';
  }
  if (least === '1.0' || most === '1.0') {
    const at = most === '1.0' ? ends[0] : ends[1];
    return `up to ${times(at)} × ${way(at)}`;
  }
  if (ends[0] < 1 && ends[1] > 1) {
    return `between ${least} × slower and ${most} × faster`;
  }
  if (least === most) {
    return `${least} × ${way(ends[0])}`;
  }
  const [first, last] = ends[0] > 1 ? [least, most] : [most, least];
  return `${first} to ${last} × ${way(ends[0])}`;
}

function times(rate: number): string {
  const factor = Math.max(rate, 1 / rate);
  return factor.toFixed(factor < 9.95 ? 1 : 0);
}

function way(rate: number): string {
  return rate > 1 ? 'faster' : 'slower';
}
