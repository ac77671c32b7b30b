/** A small table of figures; where there is no room for columns, each row becomes a name with its figures below. */

import { element, setAttribute, setText } from '../page/dom.js';

export class FigureTable {
  readonly el = element('table', 'km-figures');
  private readonly head = element('tr');
  private readonly body = element('tbody');
  private headings: readonly string[] = [];

  /** @param label - its name for assistive technology */
  constructor(label: string) {
    // Laid out as anything else than a table, it would be none without these.
    this.el.setAttribute('role', 'table');
    this.el.setAttribute('aria-label', label);
    this.head.setAttribute('role', 'row');
    this.body.setAttribute('role', 'rowgroup');
    const top = element('thead');
    top.setAttribute('role', 'rowgroup');
    top.append(this.head);
    this.el.append(top, this.body);
  }

  /**
   * @param headings - the first is of the rows' names
   * @param rows - one text for each heading
   */
  fill(headings: readonly string[], rows: readonly (readonly string[])[]): void {
    if (headings.join('\n') !== this.headings.join('\n')) {
      this.headings = headings;
      this.head.replaceChildren(...headings.map(columnHeader));
      this.body.replaceChildren();
    }
    while (this.body.rows.length > rows.length) {
      this.body.deleteRow(-1);
    }
    rows.forEach((texts, i) => {
      const row = this.body.rows[i] ?? this.addRow();
      texts.forEach((text, k) => {
        setText(row.cells[k]!, text);
        setAttribute(row.cells[k]!, 'data-missing', text === '–' ? 'true' : null);
      });
      setAttribute(row.cells[0]!, 'title', texts[0] ?? null);
    });
    this.el.hidden = rows.length === 0;
  }

  private addRow(): HTMLTableRowElement {
    const row = this.body.insertRow();
    row.setAttribute('role', 'row');
    this.headings.forEach((heading, k) => {
      const one = element(k === 0 ? 'th' : 'td');
      one.setAttribute('role', k === 0 ? 'rowheader' : 'cell');
      one.dataset.label = heading;
      row.append(one);
    });
    return row;
  }
}

function columnHeader(text: string): HTMLElement {
  const one = element('th', '', text);
  one.setAttribute('role', 'columnheader');
  return one;
}
