/**
 * Parts of a chart document that Bokeh makes only with `eval`, added by the page to its own copy: local time on the
 * axes, and tooltips with a row's name, the time and the value (docs/messages.md, *Documents*).
 */

import type { BokehDocument, BokehModel, BokehSource, Image } from './bokeh_api.js';
import { element } from '../page/dom.js';
import { MISSING } from './tiles.js';

interface Formatter extends BokehModel {
  doFormat(ticks: number[], ...rest: unknown[]): unknown;
}

/** The variables that Bokeh's hover tool passes on the place it is over. */
interface HoverVars {
  /** In data coordinates; x in ms since 1970. */
  readonly x: number;
  readonly snap_x: number;
  readonly index: number | null;
  readonly image_index?: { readonly index: number; readonly i: number; readonly j: number };
  /** Of the line that it is over. */
  readonly glyph_view?: { readonly model: { readonly y?: { readonly field?: string } } };
}

type Tooltip = (source: BokehSource, vars: HoverVars) => HTMLElement;

/** A line: what it is called, its column and unit, and those of a second reading of the same source, if any. */
type HoverLine = readonly [
  label: string,
  column: string,
  unit: string,
  column2?: string,
  unit2?: string
];

interface HoverTag {
  readonly kind?: 'hover-lines' | 'hover-tiles';
  /** All lines of the tool. */
  readonly values?: readonly HoverLine[];
}

/** Areas above each other: the columns of their upper edges, the lowest first, and what they are called. */
interface StackTag {
  readonly kind: 'hover-stack';
  readonly label: string;
  readonly columns: readonly string[];
  readonly values: readonly string[];
  readonly unit: string;
}

interface TilesTag {
  readonly labels: readonly string[];
  readonly unit: string;
  /** The value of the last colour, if it is not 100. */
  readonly high?: number;
}

/** The time by which a zone is ahead of UTC at a moment (ms since 1970), in ms. */
export type Zone = (time: number) => number;

export const zoneOfBrowser: Zone = time => -new Date(time).getTimezoneOffset() * 60_000;

export function localise(charts: BokehDocument, zone: Zone): void {
  for (const model of charts.all_models) {
    if (model.type === 'DatetimeTickFormatter') {
      showLocalTime(model as Formatter, zone);
    } else if (model.type === 'HoverTool') {
      const tag = (model.tags[0] ?? {}) as HoverTag | StackTag;
      if (tag.kind === 'hover-tiles') {
        model.setv({ tooltips: tileTooltip(zone) });
      } else if (tag.kind === 'hover-stack') {
        model.setv({ tooltips: stackTooltip(tag, zone) });
      } else if (tag.kind === 'hover-lines') {
        model.setv({ tooltips: lineTooltip(tag.values ?? [], zone) });
      }
    }
  }
}

/** Bokeh formats dates in UTC: give it ticks shifted by the zone. */
function showLocalTime(formatter: Formatter, zone: Zone): void {
  const format = formatter.doFormat.bind(formatter);
  formatter.doFormat = (ticks, ...rest) =>
    format(
      ticks.map(tick => tick + zone(tick)),
      ...rest
    );
}

function tileTooltip(zone: Zone): Tooltip {
  return (source, { x, image_index: place }) => {
    const tag = source.tags[0] as TilesTag;
    const image = (source.data.image as ArrayLike<Image> | undefined)?.[place?.index ?? -1];
    const value = image && place ? image[place.j * image.shape[1]! + place.i]! : MISSING;
    const row = place?.j ?? -1;
    const reading =
      value === MISSING ? 'no sample' : amount((value * (tag.high ?? 100)) / 100, tag.unit);
    return tooltip(clock(x, zone), [[tag.labels[row] ?? '', reading]]);
  };
}

function lineTooltip(lines: readonly HoverLine[], zone: Zone): Tooltip {
  return (source, { index, snap_x: x, glyph_view: view }) => {
    const over = view?.model.y?.field;
    const line = lines.find(([, column]) => column === over) ?? (lines.length === 1 && lines[0]);
    if (!line) {
      return tooltip(clock(x, zone), []);
    }
    const [label, column, unit, column2, unit2] = line;
    const read = (name: string, of: string): string => {
      const value = source.data[name]?.[index ?? -1];
      return typeof value === 'number' && Number.isFinite(value) ? amount(value, of) : 'no sample';
    };
    const second = column2 === undefined ? [] : [read(column2, unit2 ?? '')];
    return tooltip(clock(x, zone), [[label, [read(column, unit), ...second].join(' · ')]]);
  };
}

/** All parts at a moment, the highest first. */
function stackTooltip({ label, columns, values, unit }: StackTag, zone: Zone): Tooltip {
  return (source, { index, snap_x: x }) => {
    const read = (column: string | undefined): number =>
      column === undefined ? 0 : Number(source.data[column]?.[index ?? -1] ?? NaN);
    const rank = read('beside');
    if (!Number.isFinite(rank)) {
      return tooltip(clock(x, zone), [[label, 'no sample']]);
    }
    const parts = columns.map(
      (column, k) => [values[k]!, read(column) - (k === 0 ? 0 : read(columns[k - 1]))] as const
    );
    return tooltip(clock(x, zone), [
      [label, String(rank)],
      ...parts.reverse().map(([part, value]) => [part, amount(value, unit)] as const)
    ]);
  };
}

const NUMBER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 });
const BYTES = new Intl.NumberFormat('en-US', {
  minimumSignificantDigits: 3,
  maximumSignificantDigits: 3,
  useGrouping: false
});

/** A value with its unit; bytes in decimal multiples: `28.8 GB`, `312 kB/s`. */
export function amount(value: number, unit: string): string {
  if (unit !== 'B' && unit !== 'B/s') {
    return `${NUMBER.format(value)} ${unit}`;
  }
  const bytes = Math.round(value);
  // As it is shown: 999,600 are 1.00 MB.
  const digits = Math.abs(bytes) < 1 ? 0 : Math.log10(Number(bytes.toPrecision(3)));
  const step = Math.min(5, Math.max(0, Math.floor(digits / 3 + 1e-9)));
  const shown = step === 0 ? String(bytes) : BYTES.format(bytes / 1000 ** step);
  return `${shown} ${['', 'k', 'M', 'G', 'T', 'P'][step]!}${unit}`;
}

function tooltip(time: string, lines: readonly (readonly [string, string])[]): HTMLElement {
  const box = element('div', 'km-tooltip');
  // Inside Bokeh's shadow tree, which the page's style sheet does not reach.
  box.style.cssText = 'font: 12px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums;';
  box.append(element('div', '', time));
  for (const [label, reading] of lines) {
    const line = element('div', '', label === '' ? '' : `${label}: `);
    line.append(element('b', '', reading));
    box.append(line);
  }
  return box;
}

/** `19:07:31.4` in the zone. */
function clock(time: number, zone: Zone): string {
  return new Date(time + zone(time)).toISOString().slice(11, 21);
}
