/** The progress of a loader's epoch: one line, an error that must never occur, and the samples that were left out. */

import { element, setText } from '../page/dom.js';
import type { LoaderState, Skip } from '../stream/page_messages.js';

const NUMBER = new Intl.NumberFormat('en-US');

export class CounterView {
  readonly el = element('div', 'km-counter');
  private readonly room = element('div', 'km-counts');
  private readonly counts = element('span');
  private readonly wrong = element('strong', 'km-wrong');
  private readonly skipped = element('details', 'km-skips');
  private readonly summary = element('summary', 'km-disclosure');
  private readonly list = element('ul');

  constructor() {
    this.skipped.append(this.summary, this.list);
    this.room.append(this.counts);
    this.el.append(this.room, this.wrong, this.skipped);
  }

  update(state: LoaderState): void {
    setText(this.counts, counterText(state));
    const whole = counterText(atEndOfEpoch(state));
    if (this.room.dataset.whole !== whole) {
      this.room.dataset.whole = whole; // Its lines are kept free from the first batch on: nothing below moves.
    }
    setText(this.wrong, wrongText(state));
    const { skips, skipped } = state;
    this.skipped.hidden = skips.length === 0;
    const which = skips.length < skipped ? `, the last ${NUMBER.format(skips.length)}` : '';
    setText(this.summary, `Skipped${which}`);
    while (this.list.children.length > skips.length) {
      this.list.lastElementChild!.remove();
    }
    skips.forEach((skip, i) => {
      setText(this.list.children[i] ?? this.list.appendChild(element('li')), skipText(skip));
    });
  }
}

/** Return whether a loader has no engine to choose from: only its steps are measured. */
export function isWatched({ backends }: LoaderState): boolean {
  return !backends.some(({ available }) => available);
}

/** `epoch 2 · batch 31 of 64 · 893 of 2,048 samples, each once · 96 replaced by synthetic · 3 skipped · …` */
export function counterText(state: LoaderState): string {
  if (state.batch === 0 && state.epoch === 0 && state.skipped === 0) {
    return 'No batch delivered yet.';
  }
  const of = (n: number, total: number | null): string =>
    total === null ? NUMBER.format(n) : `${NUMBER.format(n)} of ${NUMBER.format(total)}`;
  // Of the samples that were delivered: those replaced or skipped stand beside them.
  const isPlanned = !isWatched(state); // The samples of a watched loader are not known.
  const isWhole = state.samples > 0 && state.lost === 0 && state.doubled === 0;
  // Over all ranks that is known only where their samplers share the data set out.
  const isCounted = !state.ranks || state.once === true;
  const once = isPlanned && isWhole && isCounted ? ', each once' : '';
  const decoded = Object.entries(state.decoded)
    .filter(([, count]) => count > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([engine, count]) => `${NUMBER.format(count)} by ${engine}`);
  return [
    // Counted as people count; Python's first epoch is 0.
    `epoch ${NUMBER.format(state.epoch + 1)}`,
    `batch ${of(state.batch, state.batches)}`,
    `${of(state.samples, state.planned)} samples${once}`,
    ...(state.padded ? [`${NUMBER.format(state.padded)} planned twice as padding`] : []),
    ...(state.replaced > 0 ? [`${NUMBER.format(state.replaced)} replaced by synthetic`] : []),
    ...(state.skipped > 0 ? [`${NUMBER.format(state.skipped)} skipped`] : []),
    ...(decoded.length > 0 ? [decoded.join(', ')] : [])
  ].join(' · ');
}

/** The state that the epoch's last batch leaves, were it all delivered by the engines known now. */
function atEndOfEpoch(state: LoaderState): LoaderState {
  const samples = state.planned ?? state.samples;
  const known = Object.entries(state.decoded).filter(([, count]) => count > 0);
  const engines = isWatched(state) ? [] : [state.backend, ...known.map(([engine]) => engine)];
  return {
    ...state,
    samples,
    batch: state.batches ?? state.batch,
    decoded: Object.fromEntries(engines.map(engine => [engine, samples]))
  };
}

/** The error that must never occur: a sample lost or doubled; empty where none was. */
export function wrongText({ lost, doubled }: LoaderState): string {
  const parts = [
    ...(lost > 0 ? [`${NUMBER.format(lost)} lost`] : []),
    ...(doubled > 0 ? [`${NUMBER.format(doubled)} delivered twice`] : [])
  ];
  return parts.length === 0 ? '' : `Samples of this epoch: ${parts.join(', ')}.`;
}

function skipText({ index, path, reason }: Skip): string {
  const which = index < 0 ? '' : `${NUMBER.format(index)}: `; // A key that is no index stands before the path.
  return `${which}${path} (${reason})`;
}
