/** The result of *Profile*: the operators that took most time, beside those of the previous profile. */

import type { Profile } from './analysis.js';
import { element, setText } from '../page/dom.js';
import { count, isKnown, number, percent, withUnit, type Figure } from './figures.js';
import { FigureTable } from './figure_table.js';
import { remember } from '../page/open_state.js';

interface Row {
  readonly name: string;
  readonly share: Figure;
  readonly ms: Figure;
  readonly calls: Figure;
}

export class OperatorsView {
  readonly el = element('details', 'km-result');
  private readonly sentence = element('span');
  private readonly cpu = new FigureTable('CPU operators');
  private readonly gpu = new FigureTable('GPU kernels');
  private readonly noGpu = element('p', 'km-basis');
  private readonly note = element('p', 'km-basis');
  private shown: Profile | null = null;

  constructor() {
    const summary = element('summary', 'km-disclosure');
    summary.append(element('span', 'km-result-name', 'Profile'), this.sentence);
    const body = element('div', 'km-folded');
    body.append(this.cpu.el, this.gpu.el, this.noGpu, this.note);
    this.el.append(summary, body);
    this.el.hidden = true;
    remember(this.el, 'profile');
  }

  /**
   * @param profile - null where none was made
   * @param before - the one before it
   * @param said - the kernel's message about it: why it has fewer steps, where the trace is
   */
  update(profile: Profile | null, before: Profile | null, said: string): void {
    if (profile === null) {
      return;
    }
    setText(this.note, said === '' ? traceText(profile) : said);
    this.note.hidden = this.note.textContent === '';
    if (profile === this.shown) {
      return;
    }
    this.shown = profile;
    setText(this.sentence, profileText(profile));
    const cpu = ({ cpu }: Profile): Row[] =>
      cpu.map(({ name, share, self_ms, count }) => ({ name, share, ms: self_ms, calls: count }));
    const gpu = ({ gpu }: Profile): Row[] =>
      gpu.map(({ name, share, ms, launches }) => ({ name, share, ms, calls: launches }));
    fill(this.cpu, 'CPU operator', 'calls', profile, before, cpu);
    fill(this.gpu, 'GPU kernel', 'launches', profile, before, gpu);
    const reason = profile.gpu_reason ?? '';
    setText(this.noGpu, reason === '' ? '' : `GPU kernels: ${reason}`);
    this.noGpu.hidden = reason === '';
  }
}

/** `10 steps of torchvision, 77.3 ms each` */
function profileText({ steps, backend, wall_ms }: Profile): string {
  const of = backend === null ? '' : ` of ${backend}`;
  const each = isKnown(wall_ms) && steps > 0 ? `, ${withUnit(wall_ms / steps, 'ms')} each` : '';
  return `${count(steps)} ${steps === 1 ? 'step' : 'steps'}${of}${each}`;
}

function traceText({ trace }: Profile): string {
  return trace === null ? '' : `The trace ${trace} is beside the recording: for ui.perfetto.dev.`;
}

function fill(
  table: FigureTable,
  what: string,
  calls: string,
  profile: Profile,
  before: Profile | null,
  rows: (profile: Profile) => Row[]
): void {
  const old = before === null ? [] : rows(before);
  const now = rows(profile);
  const each = (value: Figure): string =>
    isKnown(value) && profile.steps > 0 ? number(value / profile.steps) : '–';
  const compared = old.length > 0;
  const gone = old
    .filter(({ name }) => !now.some(row => row.name === name))
    .map(({ name, share }) => [name, percent(share), '–', '–', '–']);
  const other = before?.backend ?? null;
  const named = other !== null && profile.backend !== null && other !== profile.backend;
  table.fill(
    [
      what,
      ...(compared ? [named ? `share with ${other}` : 'share before'] : []),
      compared ? (named ? `with ${profile.backend}` : 'share now') : 'share',
      'ms a step',
      `${calls} a step`
    ],
    [
      ...now.map(({ name, share, ms, calls: n }) => [
        name,
        ...(compared ? [percent(old.find(row => row.name === name)?.share)] : []),
        percent(share),
        each(ms),
        each(n)
      ]),
      ...gone
    ]
  );
}
