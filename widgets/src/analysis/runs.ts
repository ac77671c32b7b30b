/** The result of *Diagnose* or *Tune*: a sentence and, opened, a table of engines or settings. */

import type { Diagnosis, Run } from './analysis.js';
import { button, CopyLine, element, setAttribute, setText } from '../page/dom.js';
import { count, isKnown, number, percent, withUnit } from './figures.js';
import { FigureTable } from './figure_table.js';
import { GainList } from './gains.js';
import { remember } from '../page/open_state.js';

const HEADINGS = [
  'engine', // of a tune: `setting`
  'images/s',
  'quartiles',
  'step',
  'wait',
  'of the ceiling',
  'CPU p50',
  'CPU p95',
  'GPU p50',
  'steps'
];

export class RunsView {
  readonly el = element('details', 'km-result');
  private readonly sentence = element('span');
  private readonly name = element('span', 'km-result-name');
  private readonly line = new CopyLine('');
  private readonly undo: HTMLButtonElement;
  private readonly kept = element('div', 'km-kept');
  private readonly table = new FigureTable('Measured in this loop');
  private readonly notes = element('ul', 'km-notes');
  private readonly gains = new GainList();
  private shown: Diagnosis | null = null;

  /** @param onUndo - a person wants the setting back that was in use before a tune */
  constructor(onUndo: (which: HTMLButtonElement) => void) {
    this.undo = button('Undo', '', () => onUndo(this.undo));
    this.kept.append(this.line.el, this.undo);
    this.kept.hidden = true;
    const summary = element('summary', 'km-disclosure');
    summary.append(this.name, this.sentence);
    const body = element('div', 'km-folded');
    body.append(this.table.el, this.gains.el, this.notes);
    this.el.append(summary, body);
    this.el.hidden = true;
    remember(this.el, 'diagnosis');
  }

  /** What a tune found, as code, and the way back: beside `el`, and shown while that is closed, too. */
  get keptEl(): HTMLElement {
    return this.kept;
  }

  /**
   * @param diagnosis - null where none was made
   * @param line - the setting that a tune left in use, as code; null: none
   * @param undo - the setting from before it that can be brought back; null: none
   */
  update(diagnosis: Diagnosis | null, line: string | null, undo: string | null): void {
    this.kept.hidden = line === null && undo === null;
    this.line.el.hidden = line === null;
    this.line.text = line ?? '';
    this.undo.hidden = undo === null;
    setAttribute(this.undo, 'title', undo === null ? null : `Back to ${undo}`);
    if (diagnosis === this.shown) {
      return;
    }
    this.shown = diagnosis;
    if (diagnosis === null) {
      return;
    }
    const { runs, message, cannot } = diagnosis;
    const isTune = diagnosis.kind === 'tune';
    setText(this.name, isTune ? 'Tune' : 'Diagnose');
    setText(this.sentence, diagnosis.sentence);
    // Why an engine has no figures is in the list of what could not be determined.
    const rows = runs.filter(run => isKnown(run.rate)).map(figures);
    const used = HEADINGS.map((_, k) => k).filter(k => rows.some(row => row[k] !== '–'));
    this.table.fill(
      used.map(k => (k === 0 && isTune ? 'setting' : HEADINGS[k]!)),
      rows.map(row => used.map(k => row[k]!))
    );
    // A measured gain replaces the predicted one, whose bounds it has.
    const measured = diagnosis.measured.map(gain => ({ ...gain, by: '' }));
    this.gains.update(measured.length > 0 ? measured : diagnosis.predicted);
    const notes = [...(message ? [message] : []), ...cannot];
    this.notes.replaceChildren(...notes.map(note => element('li', '', note)));
    this.notes.hidden = notes.length === 0;
  }
}

function figures(run: Run): string[] {
  const { rate_low: low, rate_high: high } = run;
  return [
    run.label !== undefined && run.label !== '' ? run.label : run.backend,
    number(run.rate),
    isKnown(low) && isKnown(high) ? `${number(low)} to ${number(high)}` : '–',
    withUnit(run.step, 'ms'),
    withUnit(run.wait, 'ms'),
    percent(run.of_ceiling),
    withUnit(run.cpu_p50, '%'),
    withUnit(run.cpu_p95, '%'),
    withUnit(run.gpu_p50, '%'),
    count(run.steps)
  ];
}
