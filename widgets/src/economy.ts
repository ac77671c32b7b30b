/**
 * What BokehJS asks the browser's style engine at every paint, and these charts need only once.
 *
 * Each paint writes a style sheet for every part of a chart and then reads computed styles, which makes the browser
 * work out all styles and the layout again, dozens of times a drawing. That is a third of what a drawing costs. Only the
 * page's private copy of BokehJS is changed; where another version has another form, it is left as it is.
 */

import type { BokehApi } from './bokeh.js';

interface StyleSheet {
  readonly el: { readonly textContent: string | null };
  _update?: (this: StyleSheet, css: string) => void;
}

interface Visual {
  _get_css_value?: (this: unknown, name: string) => string;
}

/** Change the page's private copy of BokehJS. */
export function economise(bokeh: BokehApi): void {
  const sheet = prototypeOf(bokeh, 'core/dom', 'InlineStyleSheet') as StyleSheet | null;
  const update = sheet?._update;
  if (sheet !== null && typeof update === 'function') {
    sheet._update = function (css) {
      if (this.el.textContent !== css) {
        update.call(this, css);
      }
    };
  }
  // Colours by CSS variables (`--bk-…`): no style sheet of ours has any, colours are set on the models (theme.ts).
  const visual = prototypeOf(bokeh, 'core/visuals/visual', 'VisualProperties') as Visual | null;
  if (typeof visual?._get_css_value === 'function') {
    visual._get_css_value = () => '';
  }
  // Only HTML inside a renderer would need to know where a glyph stands; it moves with every drawing.
  const glyphs = prototypeOf(bokeh, 'models/renderers/glyph_renderer', 'GlyphRendererView');
  if (glyphs !== null && 'update_position' in glyphs) {
    glyphs.update_position = () => undefined;
  }
  const plot = prototypeOf(bokeh, 'models/plots/plot_canvas', 'PlotView');
  if (plot !== null) {
    readOnce(plot, 'base_font_size');
  }
}

/** Let a getter be computed once for each object: the size that `em` means on a chart. */
function readOnce(prototype: object, name: string): void {
  const property: { get?: (this: object) => unknown } | undefined = Object.getOwnPropertyDescriptor(
    prototype,
    name
  );
  const get = property?.get;
  if (get === undefined) {
    return;
  }
  const known = new WeakMap<object, unknown>();
  Object.defineProperty(prototype, name, {
    configurable: true,
    get(this: object): unknown {
      if (!known.has(this)) {
        known.set(this, get.call(this));
      }
      return known.get(this);
    }
  });
}

function prototypeOf(bokeh: BokehApi, module: string, name: string): object | null {
  let found: unknown;
  try {
    found = (bokeh.require(module) as Record<string, unknown>)[name];
  } catch (error) {
    console.debug(`kernel_monitor: BokehJS ${bokeh.version} has no ${module}.`, error);
  }
  return typeof found === 'function' ? (found.prototype as object) : null;
}
