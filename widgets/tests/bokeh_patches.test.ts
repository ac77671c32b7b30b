import { describe, expect, it } from 'vitest';

import type { BokehApi } from '../src/charts/bokeh_api.js';
import { patchBokeh, slowReason } from '../src/charts/bokeh_patches.js';

type Modules = Record<string, Record<string, unknown>>;

/** The parts of BokehJS 3.9 that are patched. */
function bokeh(version = '3.9.2'): {
  api: BokehApi;
  modules: Modules;
  asked: string[];
} {
  const asked: string[] = [];
  class InlineStyleSheet {
    readonly el = document.createElement('style');
    _update(css: string): void {
      asked.push(css);
      this.el.textContent = css;
    }
    replace(css: string): void {
      this._update(css);
    }
  }
  class VisualProperties {
    _get_css_value(name: string): string {
      asked.push(name);
      return '';
    }
  }
  class PlotView {
    get base_font_size(): number | null {
      asked.push('font');
      return 13;
    }
  }
  class RendererView {
    update_position(): void {
      asked.push('position');
    }
  }
  class GlyphRendererView extends RendererView {}
  const modules: Modules = {
    'core/dom': { InlineStyleSheet },
    'core/visuals/visual': { VisualProperties },
    'models/plots/plot_canvas': { PlotView },
    'models/renderers/glyph_renderer': { GlyphRendererView }
  };
  const require = (name: string): unknown => {
    if (!(name in modules)) {
      throw new Error(`Cannot find module '${name}'`);
    }
    return modules[name];
  };
  return { api: { version, require } as unknown as BokehApi, modules, asked };
}

type Class = new () => Record<string, (...args: unknown[]) => unknown> & { el: HTMLElement };

describe('BokehJS of a page', () => {
  it('does not ask the style engine for what is known', () => {
    const { api, modules, asked } = bokeh();
    patchBokeh(api);
    const made = (module: string, name: string): InstanceType<Class> =>
      new (modules[module]![name] as Class)();
    const sheet = made('core/dom', 'InlineStyleSheet');
    sheet.replace!('a');
    sheet.replace!('a');
    sheet.replace!('b');
    expect(sheet.el.textContent).toBe('b');
    expect(made('core/visuals/visual', 'VisualProperties')._get_css_value!('text-color')).toBe('');
    made('models/renderers/glyph_renderer', 'GlyphRendererView').update_position!();
    const [plot, other] = [0, 1].map(() => made('models/plots/plot_canvas', 'PlotView'));
    expect([plot!.base_font_size, plot!.base_font_size, other!.base_font_size]).toEqual([
      13, 13, 13
    ]);
    expect(asked).toEqual(['a', 'b', 'font', 'font']);
    expect(slowReason(api)).toBeNull();
  });

  it('of a version that nobody has read is left as it is, and the page says so', () => {
    const { api, modules, asked } = bokeh('4.0.0');
    patchBokeh(api);
    new (modules['models/renderers/glyph_renderer']!.GlyphRendererView as Class)()
      .update_position!();
    expect(asked).toEqual(['position']);
    expect(slowReason(api)).toContain('The charts are drawn less often: Bokeh 4.0.0');
  });

  it('of another form is left as it is, in all parts', () => {
    for (const change of [
      (modules: Modules) => delete modules['core/dom'],
      (modules: Modules) => (modules['core/visuals/visual'] = { VisualProperties: Map }),
      (modules: Modules) => (modules['models/plots/plot_canvas'] = {})
    ]) {
      const { api, modules, asked } = bokeh();
      change(modules);
      patchBokeh(api);
      new (modules['models/renderers/glyph_renderer']!.GlyphRendererView as Class)()
        .update_position!();
      expect(asked).toEqual(['position']);
      expect(slowReason(api)).toContain('drawn less often');
    }
    expect('_get_css_value' in Map.prototype).toBe(false);
  });
});
