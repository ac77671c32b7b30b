/**
 * Four private methods of BokehJS, replaced in the page's own copy of it: a third of what a drawing costs.
 *
 * At every paint BokehJS writes a style sheet for each part of a chart and then reads computed styles, so that the
 * browser computes all styles and the layout again, dozens of times. Bokeh has no public option against that: the style
 * sheets come from its views' own `paint`, and CSS variables, font sizes and positions are read unconditionally. So the
 * methods are replaced, in the versions whose source was read, and only if all four are there as they were. Any other
 * version is left unchanged: charts are the same and drawn less often (pace.ts), and a line below them says why.
 */

import type { BokehApi } from './bokeh_api.js';

/** Versions of BokehJS in which these methods were read and are the same. */
const VERSIONS = /^3\.[789]\./;

const unpatched = new WeakMap<BokehApi, string>();

/** Return the reason why this BokehJS was not patched; null if it was. */
export function slowReason(bokeh: BokehApi): string | null {
  return unpatched.get(bokeh) ?? null;
}

/** Patch the page's own copy of BokehJS, or note why not (`slowReason`). */
export function patchBokeh(bokeh: BokehApi): void {
  try {
    patch(bokeh);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    unpatched.set(bokeh, `The charts are drawn less often: ${reason}`);
  }
}

/** @throws Error when the version is not known, or one of the methods is missing. */
function patch(bokeh: BokehApi): void {
  if (!VERSIONS.test(bokeh.version)) {
    throw new Error(`Bokeh ${bokeh.version} is newer or older than the versions that are sped up.`);
  }
  const sheets = prototypeOf(bokeh, 'core/dom', 'InlineStyleSheet');
  const visuals = prototypeOf(bokeh, 'core/visuals/visual', 'VisualProperties');
  const glyphs = prototypeOf(bokeh, 'models/renderers/glyph_renderer', 'GlyphRendererView');
  const plots = prototypeOf(bokeh, 'models/plots/plot_canvas', 'PlotView');
  const update = methodOf(sheets, '_update');
  const fontSize = getterOf(plots, 'base_font_size');
  methodOf(visuals, '_get_css_value');
  methodOf(glyphs, 'update_position');

  replace(sheets, '_update', function (this: StyleSheet, css: string) {
    if (this.el.textContent !== css) {
      update.call(this, css);
    }
  });
  // Colours by CSS variables (`--bk-…`): no style sheet of ours has any, colours are set on the models (theme.ts).
  replace(visuals, '_get_css_value', () => '');
  // The position on the page is for HTML inside a renderer; these charts have none.
  replace(glyphs, 'update_position', () => undefined);
  // The size that `em` means on a chart: computed once for each.
  const known = new WeakMap<object, unknown>();
  Object.defineProperty(plots, 'base_font_size', {
    configurable: true,
    get(this: object): unknown {
      if (!known.has(this)) {
        known.set(this, fontSize.call(this));
      }
      return known.get(this);
    }
  });
}

interface StyleSheet {
  readonly el: { readonly textContent: string | null };
}

function prototypeOf(bokeh: BokehApi, module: string, name: string): object {
  const found = (bokeh.require(module) as Record<string, unknown>)[name];
  if (typeof found !== 'function') {
    throw new Error(`Bokeh ${bokeh.version} has no ${name} in ${module}.`);
  }
  return found.prototype as object;
}

/** Its own or an inherited method. */
function methodOf(prototype: object, name: string): (...args: unknown[]) => unknown {
  const method = (prototype as Record<string, unknown>)[name];
  if (typeof method !== 'function') {
    throw new Error(`Bokeh's ${prototype.constructor.name} has no ${name}.`);
  }
  return method as (...args: unknown[]) => unknown;
}

function getterOf(prototype: object, name: string): (this: object) => unknown {
  const property: { get?: (this: object) => unknown } =
    Object.getOwnPropertyDescriptor(prototype, name) ?? {};
  if (property.get === undefined) {
    throw new Error(`Bokeh's ${prototype.constructor.name} has no ${name}.`);
  }
  return property.get;
}

function replace(prototype: object, name: string, method: unknown): void {
  Object.defineProperty(prototype, name, { configurable: true, writable: true, value: method });
}
