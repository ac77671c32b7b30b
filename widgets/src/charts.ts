/**
 * What Bokeh cannot do without `eval`, done by the page on its own copy of a chart document: local time on the axes,
 * and tooltips with a row's name, the time and the value (docs/architecture.md, *Documents*).
 */

import type { BokehDocument, BokehModel, BokehSource, Image } from './bokeh.js';
import { element } from './dom.js';
import { MISSING } from './tiles.js';

interface Formatter extends BokehModel {
  doFormat(ticks: number[], ...rest: unknown[]): unknown;
}

/** What Bokeh's hover tool tells about the place it is over. */
interface HoverVars {
  /** In data coordinates; x in ms since 1970. */
  readonly x: number;
  readonly snap_x: number;
  readonly index: number | null;
  readonly image_index?: { readonly index: number; readonly i: number; readonly j: number };
}

type Tooltip = (source: BokehSource, vars: HoverVars) => HTMLElement;

interface HoverTag {
  readonly kind?: string;
  readonly values?: readonly (readonly [label: string, column: string, unit: string])[];
}

interface TilesTag {
  readonly labels: readonly string[];
  readonly unit: string;
}

export function localise(charts: BokehDocument): void {
  for (const model of charts.all_models) {
    if (model.type === 'DatetimeTickFormatter') {
      showLocalTime(model as Formatter);
    } else if (model.type === 'HoverTool') {
      const tag = (model.tags[0] ?? {}) as HoverTag;
      if (tag.kind === 'hover-tiles') {
        model.setv({ tooltips: tileTooltip });
      } else if (tag.kind === 'hover-lines') {
        model.setv({ tooltips: lineTooltip(tag.values ?? []) });
      }
    }
  }
}

/** Bokeh formats dates in UTC: give it ticks shifted by the zone. */
function showLocalTime(formatter: Formatter): void {
  const format = formatter.doFormat.bind(formatter);
  formatter.doFormat = (ticks, ...rest) =>
    format(
      ticks.map(tick => tick - new Date(tick).getTimezoneOffset() * 60_000),
      ...rest
    );
}

const tileTooltip: Tooltip = (source, { x, image_index: place }) => {
  const tag = source.tags[0] as TilesTag;
  const image = (source.data.image as ArrayLike<Image> | undefined)?.[place?.index ?? -1];
  const value = image && place ? image[place.j * image.shape[1]! + place.i]! : MISSING;
  const reading = value === MISSING ? 'no sample' : `${value} ${tag.unit}`;
  return tooltip(x, [[tag.labels[place?.j ?? -1] ?? '', reading]]);
};

function lineTooltip(values: NonNullable<HoverTag['values']>): Tooltip {
  return (source, { index, snap_x: x }) =>
    tooltip(
      x,
      values.map(([label, column, unit]) => {
        const value = source.data[column]?.[index ?? -1];
        const known = typeof value === 'number' && Number.isFinite(value);
        return [label, known ? `${NUMBER.format(value)} ${unit}` : 'no sample'];
      })
    );
}

const NUMBER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 });

function tooltip(time: number, lines: readonly (readonly [string, string])[]): HTMLElement {
  const box = element('div', 'km-tooltip');
  // Inside Bokeh's shadow tree, which the page's style sheet does not reach.
  box.style.cssText = 'font: 12px/1.4 system-ui, sans-serif; font-variant-numeric: tabular-nums;';
  box.append(element('div', '', clock(time)));
  for (const [label, reading] of lines) {
    const line = element('div', '', label === '' ? '' : `${label}: `);
    line.append(element('b', '', reading));
    box.append(line);
  }
  return box;
}

function clock(time: number): string {
  const date = new Date(time);
  const tenths = Math.floor(date.getMilliseconds() / 100);
  const two = (n: number): string => String(n).padStart(2, '0');
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${tenths}`;
}
