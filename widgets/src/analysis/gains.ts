/** Predicted and measured gains, in words. */

import type { Gain } from './analysis.js';
import { element, setText } from '../page/dom.js';
import { isKnown } from './figures.js';

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** `dali-cpu: expected 35 to 55 % shorter steps; measured 48 %` */
export function gainText({ action, low, high, measured }: Gain): string {
  const what = action === 'loader' ? 'A loader that never keeps the step waiting' : action;
  const parts = [
    ...(isKnown(low) && isKnown(high) ? [`expected ${between(low, high)}`] : []),
    ...(isKnown(measured) ? [`measured ${one(measured)}`] : [])
  ];
  if (parts.length === 2 && isKnown(low) && isKnown(measured) && low >= 0 && measured >= 0) {
    parts[1] = `measured ${whole(measured)} %`;
  }
  return `${what}: ${parts.length > 0 ? parts.join('; ') : 'not known'}`;
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

function between(low: number, high: number): string {
  const [a, b] = [whole(low), whole(high)];
  if (low >= 0) {
    return a === b ? `${a} % shorter steps` : `${a} to ${b} % shorter steps`;
  }
  if (high < 0) {
    return `${whole(-high)} to ${whole(-low)} % longer steps`;
  }
  return `between ${whole(-low)} % longer and ${b} % shorter steps`;
}

function one(gain: number): string {
  return gain < 0 ? `${whole(-gain)} % longer steps` : `${whole(gain)} % shorter steps`;
}

function whole(share: number): string {
  return WHOLE.format(share * 100);
}
