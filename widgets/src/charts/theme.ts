/** The page's colours on the charts: text and lines follow JupyterLab's theme, or else the system's. */

import type { BokehDocument, BokehModel } from './bokeh_api.js';

interface ChartColors {
  /** Text that is read: notes on the charts. */
  readonly ink: string;
  /** Titles. */
  readonly title: string;
  /** Labels of axes, legends and colour bars. */
  readonly text: string;
  /** Axes and ticks. */
  readonly line: string;
}

/** The style sheet's variables for these colours. */
const VARIABLES: ChartColors = {
  ink: '--km-ink',
  title: '--km-ink',
  text: '--km-muted',
  line: '--km-line'
};

/** The colours that hold for an element now. */
export function readColors(el: HTMLElement): ChartColors {
  const probe = document.createElement('span');
  probe.hidden = true;
  el.append(probe);
  const read = (variable: string): string => {
    // Through a real property: a variable's own value may be another variable, or a colour no canvas knows.
    probe.style.color = `var(${variable})`;
    return getComputedStyle(probe).color;
  };
  const colors = {
    ink: read(VARIABLES.ink),
    title: read(VARIABLES.title),
    text: read(VARIABLES.text),
    line: read(VARIABLES.line)
  };
  probe.remove();
  return colors;
}

/** Give a chart document these colours. Colours of data stay, and what has no colour gets none. */
export function paint(charts: BokehDocument, colors: ChartColors): void {
  for (const model of charts.all_models) {
    const values: Record<string, string> = {};
    for (const [attribute, value] of Object.entries(model.attributes)) {
      const color = colorOf(model, attribute, colors);
      if (color !== null && value !== null && value !== color) {
        values[attribute] = color;
      }
    }
    if (Object.keys(values).length > 0) {
      model.setv(values);
    }
  }
}

const GUIDES = /(Axis|Grid|Legend|ColorBar)$/;

function colorOf(model: BokehModel, attribute: string, colors: ChartColors): string | null {
  if (model.tags.includes('ink') || model.type === 'Title') {
    const color = model.type === 'Title' ? colors.title : colors.ink;
    return attribute === 'text_color' ? color : null;
  }
  if (!GUIDES.test(model.type) || model.tags.includes('own')) {
    return null;
  }
  if (attribute.endsWith('text_color')) {
    return colors.text;
  }
  return attribute.endsWith('line_color') ? colors.line : null;
}

/** Call `change` whenever the page's colours may have changed; returns the function that stops it. */
export function watchTheme(change: () => void): () => void {
  const observer = new MutationObserver(change);
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name', 'class', 'style']
  });
  // A report's own switch between light and dark.
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
  const query = matchMedia('(prefers-color-scheme: dark)');
  query.addEventListener('change', change);
  return () => {
    observer.disconnect();
    query.removeEventListener('change', change);
  };
}
