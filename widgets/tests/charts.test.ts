import { describe, expect, it } from 'vitest';

import { localise } from '../src/charts.js';
import { paint } from '../src/theme.js';
import { fakeDocument, FakeModel } from './fakes.js';

const COLORS = { ink: 'ink', title: 'title', text: 'text', line: 'line' };

describe('theme', () => {
  it('colours guides and leaves data and what has no colour', () => {
    const axis = new FakeModel('DatetimeAxis', null, [], {
      major_label_text_color: 'grey',
      axis_line_color: null,
      minor_tick_line_color: 'grey',
      axis_label_text_font: 'x'
    });
    const line = new FakeModel('Line', null, [], { line_color: 'blue' });
    const title = new FakeModel('Title', null, [], { text_color: 'grey' });
    const note = new FakeModel('Label', null, ['ink'], { text_color: 'grey' });
    const label = new FakeModel('Text', null, [], { text_color: 'black' });
    paint(fakeDocument([axis, line, title, note, label]), COLORS);
    expect(axis.attributes).toEqual({
      major_label_text_color: 'text',
      axis_line_color: null,
      minor_tick_line_color: 'line',
      axis_label_text_font: 'x'
    });
    expect(line.attributes.line_color).toBe('blue');
    expect(title.attributes.text_color).toBe('title');
    expect(note.attributes.text_color).toBe('ink');
    expect(label.attributes.text_color).toBe('black');
  });
});

describe('what Bokeh cannot do', () => {
  it('local time on the axes', () => {
    const formatter = Object.assign(new FakeModel('DatetimeTickFormatter', null), {
      doFormat: (ticks: number[]) => ticks
    });
    localise(fakeDocument([formatter]));
    const noon = Date.UTC(2026, 10, 20, 12);
    const shift = new Date(noon).getTimezoneOffset() * 60_000;
    expect(formatter.doFormat([noon])).toEqual([noon - shift]);
  });

  it('tooltips over tiles: row, time and value, or that there is none', () => {
    const tag = { kind: 'tiles', labels: ['core 0', '<b>core 1</b>'], unit: '%', slots: 2 };
    const source = new FakeModel('ColumnDataSource', 's', [tag]);
    source.data = { image: [Object.assign(Uint8Array.of(1, 2, 37, 255), { shape: [2, 2] })] };
    const hover = new FakeModel('HoverTool', null, [{ kind: 'hover-tiles' }]);
    localise(fakeDocument([hover, source]));
    const tooltip = hover.attributes.tooltips as (source: FakeModel, vars: unknown) => HTMLElement;
    const x = new Date(2026, 10, 20, 9, 5, 7, 430).getTime();
    const at = (i: number): HTMLElement =>
      tooltip(source, { x, image_index: { index: 0, i, j: 1 } });
    expect(at(0).textContent).toBe('09:05:07.4<b>core 1</b>: 37 %');
    expect(at(0).querySelectorAll('b')).toHaveLength(1);
    expect(at(1).textContent).toContain('no sample');
  });

  it('tooltips over lines', () => {
    const source = new FakeModel('ColumnDataSource', 's');
    source.data = { y0: [1234.56, NaN] };
    const hover = new FakeModel('HoverTool', null, [
      { kind: 'hover-lines', values: [['mean', 'y0', 'images/s']] }
    ]);
    localise(fakeDocument([hover]));
    const tooltip = hover.attributes.tooltips as (source: FakeModel, vars: unknown) => HTMLElement;
    expect(tooltip(source, { snap_x: 0, index: 0 }).textContent).toContain(
      'mean: 1,234.6 images/s'
    );
    expect(tooltip(source, { snap_x: 0, index: 1 }).textContent).toContain('no sample');
  });
});
