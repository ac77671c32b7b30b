/** The result of *Diagnose*: a sentence and, opened, a table of engines. */

import type { Diagnosis, Run } from './analysis.js';
import { element, setText } from '../page/dom.js';
import { count, isKnown, number, percent, withUnit } from './figures.js';
import { FigureTable } from './figure_table.js';
import { GainList } from './gains.js';
import { remember } from '../page/open_state.js';

const HEADINGS = [
  'engine',
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
  private readonly table = new FigureTable('Engines measured in this loop');
  private readonly notes = element('ul', 'km-notes');
  private readonly gains = new GainList();
  private shown: Diagnosis | null = null;

  constructor() {
    const summary = element('summary', 'km-disclosure');
    summary.append(element('span', 'km-result-name', 'Diagnose'), this.sentence);
    const body = element('div', 'km-folded');
    body.append(this.table.el, this.gains.el, this.notes);
    this.el.append(summary, body);
    this.el.hidden = true;
    remember(this.el, 'diagnosis');
  }

  /** @param diagnosis - null where none was made */
  update(diagnosis: Diagnosis | null): void {
    if (diagnosis === this.shown) {
      return;
    }
    this.shown = diagnosis;
    if (diagnosis === null) {
      return;
    }
    const { runs, message, cannot } = diagnosis;
    setText(this.sentence, diagnosis.sentence);
    // Why an engine has no figures is in the list of what could not be determined.
    const rows = runs.filter(run => isKnown(run.rate)).map(figures);
    const used = HEADINGS.map((_, k) => k).filter(k => rows.some(row => row[k] !== '–'));
    this.table.fill(
      used.map(k => HEADINGS[k]!),
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
    run.backend,
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
