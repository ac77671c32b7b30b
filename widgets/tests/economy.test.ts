import { describe, expect, it, vi } from 'vitest';

import type { BokehApi } from '../src/bokeh.js';
import { economise } from '../src/economy.js';

/** The parts of BokehJS 3.9 that are concerned. */
function bokeh(): {
  api: BokehApi;
  modules: Record<string, Record<string, unknown>>;
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
  class GlyphRendererView {
    update_position(): void {
      asked.push('position');
    }
  }
  const modules: Record<string, Record<string, unknown>> = {
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
  return { api: { version: '3.9.2', require } as unknown as BokehApi, modules, asked };
}

type Class = new () => Record<string, (...args: unknown[]) => unknown> & { el: HTMLElement };

describe('BokehJS of a page', () => {
  it('does not ask the style engine for what is known', () => {
    const { api, modules, asked } = bokeh();
    economise(api);
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
  });

  it('of another form is left as it is', () => {
    const debug = vi.spyOn(console, 'debug').mockImplementation(() => undefined);
    const { api, modules } = bokeh();
    delete modules['core/dom'];
    modules['core/visuals/visual'] = { VisualProperties: Map };
    modules['models/plots/plot_canvas'] = {};
    economise(api);
    expect(debug).toHaveBeenCalledOnce();
    expect('_get_css_value' in Map.prototype).toBe(false);
    debug.mockRestore();
  });
});
