/** Figures as people read them; `–` for what was not measured. */

const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const THREE = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 3 });
/** These stand before their figures (as in kernel_monitor/report/formats.py). */
const BEFORE = '$£¥';

export type Figure = number | null | undefined;

/** Return whether it was measured. */
export function isKnown(value: Figure): value is number {
  return typeof value === 'number' && Number.isFinite(value);
}

/** `1,204` */
export function count(value: Figure): string {
  return isKnown(value) ? WHOLE.format(value) : '–';
}

/** Three digits, whole from a hundred on: `0.023`, `12.5`, `1,204`. */
export function number(value: Figure): string {
  return isKnown(value) ? (Math.abs(value) >= 100 ? WHOLE : THREE).format(value) : '–';
}

/** A share of one: `62 %`, `<1 %`. */
export function percent(share: Figure): string {
  if (!isKnown(share)) {
    return '–';
  }
  return share > 0 && share < 0.005 ? '<1 %' : `${WHOLE.format(share * 100)} %`;
}

/** A sentence and the counts behind it: `291 → 432 images/s` and ` (3,264 in 11 s → 3,328 in 8 s)`. */
export function countsApart(sentence: string): [words: string, counts: string] {
  const at = /\s\([^()]*\)\.?$/.exec(sentence)?.index ?? sentence.length;
  return [sentence.slice(0, at), sentence.slice(at)];
}

/** With its unit, if there is a figure. */
export function withUnit(value: Figure, unit: string): string {
  return isKnown(value) ? `${number(value)} ${unit}` : '–';
}

/** Three digits, in whole units: `2.50 €`, `$0.00201`. */
export function money(value: number, currency: string): string {
  const size = Number(Math.abs(value).toPrecision(3)); // rounded first: 0.0009999 is 0.00100
  const digits = size === 0 || size >= 1 ? 2 : Math.min(2 - Math.floor(Math.log10(size)), 9);
  const figure = value.toLocaleString('en-US', {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits
  });
  return currency !== '' && BEFORE.includes(currency)
    ? `${currency}${figure}`
    : `${figure} ${currency}`.trim();
}
