import { describe, expect, it } from 'vitest';

import { amount, localise, zoneOfBrowser } from '../src/charts/charts.js';
import { paint } from '../src/charts/theme.js';
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
    const separator = new FakeModel('Grid', null, ['own'], { grid_line_color: 'white' });
    paint(fakeDocument([axis, line, title, note, label, separator]), COLORS);
    expect(separator.attributes.grid_line_color).toBe('white');
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
    localise(fakeDocument([formatter]), zoneOfBrowser);
    const noon = Date.UTC(2026, 10, 20, 12);
    const shift = new Date(noon).getTimezoneOffset() * 60_000;
    expect(formatter.doFormat([noon])).toEqual([noon - shift]);
  });

  it('tooltips over areas: whose they are, and each part for itself', () => {
    const source = new FakeModel('ColumnDataSource', 's');
    source.data = { y0: [2, 2], y1: [5.5, 2], beside: [3, NaN] };
    const tag = {
      kind: 'hover-stack',
      label: 'slowest rank',
      columns: ['y0', 'y1'],
      values: ['wait', 'forward'],
      unit: 'ms'
    };
    const hover = new FakeModel('HoverTool', null, [tag]);
    localise(fakeDocument([hover, source]), zoneOfBrowser);
    const tooltip = hover.attributes.tooltips as (source: FakeModel, vars: unknown) => HTMLElement;
    const at = (index: number): HTMLElement => tooltip(source, { index, snap_x: 0 });
    expect([...at(0).querySelectorAll('div')].slice(1).map(line => line.textContent)).toEqual([
      'slowest rank: 3',
      'forward: 3.5 ms',
      'wait: 2 ms'
    ]);
    expect(at(1).textContent).toContain('slowest rank: no sample');
  });

  it('tooltips over tiles: row, time and value, or that there is none', () => {
    const tag = { kind: 'tiles', labels: ['core 0', '<b>core 1</b>'], unit: '%', slots: 2 };
    const source = new FakeModel('ColumnDataSource', 's', [tag]);
    source.data = { image: [Object.assign(Uint8Array.of(1, 2, 37, 255), { shape: [2, 2] })] };
    const hover = new FakeModel('HoverTool', null, [{ kind: 'hover-tiles' }]);
    localise(fakeDocument([hover, source]), zoneOfBrowser);
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
    localise(fakeDocument([hover]), zoneOfBrowser);
    const tooltip = hover.attributes.tooltips as (source: FakeModel, vars: unknown) => HTMLElement;
    expect(tooltip(source, { snap_x: 0, index: 0 }).textContent).toContain(
      'mean: 1,234.6 images/s'
    );
    expect(tooltip(source, { snap_x: 0, index: 1 }).textContent).toContain('no sample');
  });

  it('tooltips of one tool over many lines: of the line that it is over, with a second reading', () => {
    const source = new FakeModel('ColumnDataSource', 's');
    source.data = { y0: [45], y1: [7], z: [28_760_000_000] };
    const values = [
      ['host', 'y0', '%', 'z', 'B'],
      ['swap', 'y1', '%']
    ];
    const hover = new FakeModel('HoverTool', null, [{ kind: 'hover-lines', values }]);
    localise(fakeDocument([hover]), () => 2 * 3_600_000);
    const tooltip = hover.attributes.tooltips as (source: FakeModel, vars: unknown) => HTMLElement;
    const over = (field: string): string =>
      tooltip(source, { snap_x: 0, index: 0, glyph_view: { model: { y: { field } } } }).textContent;
    expect(over('y0')).toBe('02:00:00.0host: 45 % · 28.8 GB');
    expect(over('y1')).toContain('swap: 7 %');
    expect(over('y1')).not.toContain('host');
    expect(over('other')).not.toContain('%');
  });

  it.each([
    [0, 'B/s', '0 B/s'],
    [999, 'B', '999 B'],
    [1000, 'B', '1.00 kB'],
    [311_700, 'B/s', '312 kB/s'],
    [999_600, 'B/s', '1.00 MB/s'],
    [1_200_000, 'B/s', '1.20 MB/s'],
    [28_760_000_000, 'B', '28.8 GB'],
    [1234.56, 'MHz', '1,234.6 MHz']
  ])('%d %s is read as %s', (value, unit, text) => {
    expect(amount(value, unit)).toBe(text);
  });
});
