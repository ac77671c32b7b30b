/** The effect of the last switch: one line and, opened, a table. */

import { button, element, setAttribute, setText } from '../page/dom.js';
import { countsApart } from './figures.js';
import type { Strip, StripRow } from '../stream/page_messages.js';

const NUMBER = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export class StripView {
  readonly el = element('details', 'km-strip');
  private readonly summary = element('summary', 'km-disclosure');
  private readonly heading = element('span', 'km-strip-heading');
  private readonly text = element('span', 'km-strip-text');
  private readonly before = element('th');
  private readonly after = element('th');
  private readonly body = element('tbody');
  /** Shown below `el` where the switch lost speed. */
  readonly back = button('', 'km-back', () => {
    this.onBack(this.shown!.loader, this.shown!.back!);
  });
  private shown: Strip | null = null;

  /** @param onBack - *switch back* was clicked: the loader's id and the backend */
  constructor(private readonly onBack: (loader: string, backend: string) => void) {
    this.summary.append(this.heading, this.text);
    const table = element('table');
    const head = element('tr');
    for (const cell of [element('th'), this.before, this.after, element('th')]) {
      cell.scope = 'col';
      head.append(cell);
    }
    const top = element('thead');
    top.append(head);
    table.append(top, this.body);
    this.el.append(this.summary, table);
    this.el.hidden = this.back.hidden = true;
  }

  /**
   * @param loader - the loader's name where there are several, else empty
   * @param backend - the engine in use: where it is not the one of the strip, the strip is of the past
   * @param live - whether switching back is possible
   */
  update(strip: Strip | null, loader: string, backend: string, live: boolean): void {
    this.el.classList.toggle('km-past', strip !== null && strip.target !== backend);
    const back = live ? (strip?.back ?? '') : '';
    this.back.hidden = back === '';
    setText(this.back, back === '' ? '' : `Back to ${back}`);
    if (strip === this.shown) {
      return;
    }
    this.shown = strip;
    this.el.hidden = strip === null;
    if (strip === null) {
      return;
    }
    const change = `${strip.source} → ${strip.target}`;
    // Where there are several loaders, the text names its own as well.
    const prefix = `${loader}: `;
    const text = strip.text.startsWith(prefix) ? strip.text.slice(prefix.length) : strip.text;
    const said = text.startsWith(change) ? '' : change;
    setText(this.heading, loader === '' ? said : `${prefix}${said}`.trim());
    // Each figure keeps its parts together where the line wraps.
    const parts = text.split(' · ');
    while (this.text.children.length > parts.length) {
      this.text.lastElementChild!.remove();
    }
    parts.forEach((part, i) => {
      const span = this.text.children[i] ?? this.text.appendChild(partOf());
      const [words, counts] = countsApart(part);
      [words, counts, i < parts.length - 1 ? ' · ' : ''].forEach((piece, k) =>
        setText(span.children[k]!, piece)
      );
    });
    // Where there is little room and it is closed, only the first figure is shown (narrow.css).
    setAttribute(this.summary, 'title', strip.text);
    setText(this.before, strip.source);
    setText(this.after, strip.target);
    this.el.classList.toggle('km-plain', strip.rows.length === 0);
    this.fill(strip.rows);
  }

  private fill(rows: readonly StripRow[]): void {
    while (this.body.rows.length > rows.length) {
      this.body.deleteRow(-1);
    }
    rows.forEach(({ label, unit, before, after }, i) => {
      const row = this.body.rows[i] ?? this.body.insertRow();
      while (row.cells.length < 4) {
        row.insertCell();
      }
      [label, number(before), number(after), unit === label ? '' : unit].forEach((text, k) =>
        setText(row.cells[k]!, text)
      );
    });
  }
}

/** A part of the text, the counts behind it, and the dot between it and the next one. */
function partOf(): HTMLElement {
  const part = element('span', 'km-strip-part');
  part.append(element('span'), element('span', 'km-counted'), element('span', 'km-strip-dot'));
  return part;
}

function number(value: number | null): string {
  if (value === null || !Number.isFinite(value)) {
    return '–';
  }
  return Math.abs(value) >= 100 ? WHOLE.format(value) : NUMBER.format(value);
}
