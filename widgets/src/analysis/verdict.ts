/** The verdict on the time of a loader's steps: one line, and opened, the reasons and the advice
 * (its Python half: kernel_monitor/analysis/verdict.py).
 */

import type { Kind, Verdict } from './analysis.js';
import { element, setAttribute, setText, uniqueId } from '../page/dom.js';
import { countsApart, isKnown, percent } from './figures.js';
import { GainList } from './gains.js';
import { remember } from '../page/open_state.js';

/** The parts of a step in the order in which they happen, and what a person calls them. */
const PARTS: Readonly<Record<string, string>> = {
  wait: 'waits for data',
  copy: 'copies to the device',
  compute: 'computes',
  other: 'other'
};
const UNKNOWN = 'not known';
/** Less than this is rounding, not a part of the step. */
const LEAST_SHARE = 0.005;

/** Outlines in a box of 16 by 16: an hourglass, two arrows, a chip, the rest of a stack, a question. */
const MARKS: Readonly<Record<Kind, string>> = {
  'input-bound': 'M4 2h8M4 14h8M5 2c0 4 6 8 6 12M11 2c0 4-6 8-6 12',
  'copy-bound': 'M2 5h11m-3-3 3 3-3 3M14 11H3m3-3-3 3 3 3',
  'compute-bound': 'M4 4h8v8H4zM6 1v3m4-3v3M6 12v3m4-3v3M1 6h3m-3 4h3m8-4h3m-3 4h3',
  'residual-heavy': 'M2 12h12M2 8h12M2 4h3m2 0h2m2 0h3',
  undetermined: 'M5 5.5a3 3 0 1 1 4.2 2.8C8.4 8.7 8 9.2 8 10.2M8 12.6v1'
};
const SVG = 'http://www.w3.org/2000/svg';

export class VerdictView {
  /** The line; opened, it shows `body`. */
  readonly el = element('details', 'km-verdict');
  /** The reasons and the advice. A separate element, so that its length moves no button below the line. */
  readonly body = element('div', 'km-folded km-verdict-body');
  /** Warnings, which must be seen while it is closed, too. */
  readonly warnings = element('ul', 'km-warnings');
  private readonly mark = document.createElementNS(SVG, 'path');
  private readonly line = element('span', 'km-verdict-line');
  private readonly kind = element('strong');
  private readonly sentence = element('span');
  /** The counts that the sentence is computed from; where there is little room, only the opened line has them. */
  private readonly counts = element('span', 'km-counted');
  private readonly shares = new SharesView();
  private readonly advice = element('p');
  private readonly gains = new GainList();
  private readonly missing = element('p', 'km-basis');
  private shown: Verdict | null | undefined;
  private isBeside = false;

  constructor() {
    const svg = document.createElementNS(SVG, 'svg');
    svg.setAttribute('viewBox', '0 0 16 16');
    svg.setAttribute('aria-hidden', 'true');
    svg.append(this.mark);
    this.line.append(this.kind, this.sentence, this.counts);
    const summary = element('summary', 'km-disclosure');
    summary.append(svg, this.line);
    this.body.id = uniqueId('km-verdict');
    summary.setAttribute('aria-controls', this.body.id);
    this.body.append(this.shares.el, this.advice, this.gains.el, this.missing);
    this.el.append(summary);
    this.warnings.setAttribute('aria-label', 'Warnings');
    this.warnings.hidden = true;
    remember(this.el, 'verdict');
    this.el.addEventListener('toggle', () => this.fold());
    this.fold();
  }

  /**
   * @param verdict - null: none yet
   * @param isBeside - another loader has one: that of the loop that trains
   */
  update(verdict: Verdict | null, isBeside = false): void {
    if (verdict === this.shown && isBeside === this.isBeside) {
      return;
    }
    this.shown = verdict;
    this.isBeside = isBeside;
    const kind = verdict?.kind ?? 'undetermined';
    setAttribute(this.el, 'data-kind', kind);
    setAttribute(this.body, 'data-kind', kind);
    setAttribute(this.mark, 'd', kind in MARKS ? MARKS[kind] : MARKS.undetermined);
    const [head, rest] = verdictWords(verdict, isBeside);
    setText(this.kind, head);
    const [words, counts] = countsApart(rest);
    setText(this.sentence, words);
    setText(this.counts, counts);
    setAttribute(this.line, 'title', `${head}${rest}`);
    this.shares.update(verdict?.shares ?? {});
    setText(this.advice, verdict?.advice ?? '');
    this.advice.hidden = this.advice.textContent === '';
    this.gains.update(verdict?.gains ?? []);
    // The advice may name some of it.
    const missing = (verdict?.missing ?? []).filter(words => !verdict?.advice.includes(words));
    setText(this.missing, missing.length === 0 ? '' : `To say more: ${missing.join('; ')}`);
    this.missing.hidden = missing.length === 0;
    const warnings = verdict?.warnings ?? [];
    this.warnings.replaceChildren(...warnings.map(warningLine));
    this.warnings.hidden = warnings.length === 0;
  }

  set hidden(hidden: boolean) {
    this.el.hidden = hidden;
    this.fold();
  }

  private fold(): void {
    this.body.hidden = this.el.hidden || !this.el.open;
  }
}

function warningLine(words: string): HTMLElement {
  const line = element('li');
  line.append(element('strong', '', 'Careful: '), element('span', '', words));
  return line;
}

/** `Input-bound: ` and `62 % of each step waits for data (1,204 steps)` */
export function verdictWords(verdict: Verdict | null, isBeside = false): [string, string] {
  if (verdict === null && isBeside) {
    return ['No verdict', ': only the loop that trains is judged here. The report judges all.'];
  }
  if (verdict === null) {
    return ['No verdict yet', ': it takes some steps of the loop.'];
  }
  const { kind, sentence } = verdict;
  const head = `${kind.slice(0, 1).toUpperCase()}${kind.slice(1)}`;
  // The kernel's sentence stands for itself elsewhere, and may begin with the same words.
  const rest = sentence.toLowerCase().startsWith(kind)
    ? sentence.slice(kind.length).replace(/^[\s:,;–]+/, '')
    : sentence.replace(/^The (?=loop|GPU)/, 'the ');
  return [head, rest === '' ? '' : `: ${rest}`];
}

/** The parts of a step, as a bar and in words. */
class SharesView {
  readonly el = element('div', 'km-shares');
  private readonly bar = element('div', 'km-shares-bar');
  private readonly legend = element('ul', 'km-shares-legend');

  constructor() {
    this.bar.setAttribute('aria-hidden', 'true');
    this.el.append(this.bar, this.legend);
  }

  update(shares: Readonly<Record<string, number | null>>): void {
    const known = Object.entries(shares).filter(
      (entry): entry is [string, number] => isKnown(entry[1]) && entry[1] >= LEAST_SHARE
    );
    const order = Object.keys(PARTS);
    known.sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    const rest = 1 - known.reduce((sum, [, share]) => sum + share, 0);
    const parts: [string, number][] =
      known.length > 0 && rest > LEAST_SHARE ? [...known, [UNKNOWN, rest]] : known;
    this.el.hidden = parts.length === 0;
    this.bar.replaceChildren(
      ...parts.map(([part, share]) => {
        const piece = element('span');
        piece.dataset.part = part;
        piece.style.flexGrow = String(share);
        return piece;
      })
    );
    this.legend.replaceChildren(
      ...parts.map(([part, share]) => {
        const line = element('li');
        const swatch = element('span', 'km-swatch');
        swatch.dataset.part = part;
        swatch.setAttribute('aria-hidden', 'true');
        line.append(swatch, element('span', '', `${PARTS[part] ?? part} ${percent(share)}`));
        return line;
      })
    );
  }
}
