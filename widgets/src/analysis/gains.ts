/** Predicted and measured gains, in words. */

import type { Gain } from './analysis.js';
import { element, setText } from '../page/dom.js';
import { isKnown } from './figures.js';

/** A change is called at most so many times faster or slower. */
const MOST_FACTOR = 100;

/** `dali-cpu: expected 1.54 to 2.2 × faster; measured 1.92 × faster` (its Python half: Gain.words of kernel_monitor/analysis/results.py) */
export function gainText({ action, low, high, measured, by }: Gain): string {
  const what = action === 'loader' ? 'Without any wait for data' : action;
  if (by !== '' && isKnown(measured)) {
    // The bounds are the spread of the measurement.
    const isUnsure = isKnown(low) && isKnown(high) && low < 0 && high > 0;
    const unsure = isUnsure ? ', but the steps vary too much to be sure' : '';
    return `${what}: measured ${faster(measured)}${unsure}`;
  }
  const parts = [
    ...(isKnown(low) && isKnown(high) ? [`expected ${faster(low, high)}`] : []),
    ...(isKnown(measured) ? [`measured ${faster(measured)}`] : [])
  ];
  return `${what}: ${parts.length > 0 ? parts.join('; ') : 'not known'}`;
}

/** A share of the step time saved, or a range of it, as a factor: `1.48 × faster`, `1.20 to 1.60 × slower`. */
export function faster(low: number, high: number = low): string {
  const factors = [low, high].map(share =>
    Math.min(MOST_FACTOR, share < 0 ? 1 - share : 1 / Math.max(1 - share, 1 / MOST_FACTOR))
  );
  const digits = Math.max(...factors) >= 2 ? 1 : 2;
  const [first, last] = factors.map(factor => factor.toFixed(factor >= 10 ? 0 : digits));
  const [way, other] = [low, high].map(share => (share < 0 ? 'slower' : 'faster'));
  const same = (1).toFixed(digits);
  if (first === same && last === same) {
    return 'as fast';
  }
  if (first === last && way === other) {
    return `${first} × ${way}`;
  }
  if (first === same || last === same) {
    return first === same ? `up to ${last} × ${other}` : `up to ${first} × ${way}`;
  }
  if (way !== other) {
    return `between ${first} × slower and ${last} × faster`;
  }
  return way === 'faster' ? `${first} to ${last} × faster` : `${last} to ${first} × slower`;
}

/** A list of gains, each with how it was computed. */
export class GainList {
  readonly el = element('ul', 'km-gains');

  update(gains: readonly Gain[]): void {
    while (this.el.children.length > gains.length) {
      this.el.lastElementChild!.remove();
    }
    gains.forEach((gain, i) => {
      const line = this.el.children[i] ?? this.el.appendChild(gainLine());
      setText(line.children[0]!, gainText(gain));
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
