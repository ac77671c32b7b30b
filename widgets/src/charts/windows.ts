/** The choice of how many seconds the charts show. */

import { button, element, setAttribute } from '../page/dom.js';

/** Seconds to choose from, as far as there is so much; and all there is. */
const STEPS: readonly number[] = [60, 300, 600];

export class WindowChooser {
  readonly el = element('div', 'km-windows');
  private choices: readonly number[] = [];
  private chosen = STEPS[0]!;
  private whole = false;

  /**
   * @param onWindow - called with the seconds to show, also when the chosen window is no longer available
   * @param onZoom - called with the factor by which the span of time is to change
   */
  constructor(
    private readonly onWindow: (seconds: number) => void,
    private readonly onZoom: (factor: number) => void
  ) {
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-label', 'Time shown');
  }

  /**
   * @param span - seconds that there are
   * @param whole - everything is shown at first, and called so
   */
  update(span: number, whole: boolean): void {
    const steps = STEPS.filter(step => step < span * (whole ? 0.99 : 1));
    const choices = [...steps, whole ? span : Math.max(span, STEPS[0]!)];
    if (choices.join() === this.choices.join()) {
      return;
    }
    const all = whole && (!this.whole || this.chosen === this.choices.at(-1));
    this.choices = choices;
    this.whole = whole;
    const buttons = choices.map((seconds, i) => {
      const label = whole && i === choices.length - 1 ? 'All' : minutes(seconds);
      return button(label, '', () => this.choose(seconds));
    });
    this.el.replaceChildren(...buttons, ...(whole ? this.zoomButtons() : []));
    if (all || !choices.includes(this.chosen)) {
      this.choose(choices.at(-1)!);
    } else {
      this.press();
    }
  }

  private choose(seconds: number): void {
    this.chosen = seconds;
    this.press();
    this.onWindow(seconds);
  }

  /** Only for a session that is over: charts that move cannot be zoomed. */
  private zoomButtons(): HTMLButtonElement[] {
    const zooms = [
      { sign: '+', label: 'Zoom in', factor: 0.5 },
      { sign: '−', label: 'Zoom out', factor: 2 }
    ];
    return zooms.map(({ sign, label, factor }) => {
      const zoom = button(sign, '', () => this.onZoom(factor));
      zoom.setAttribute('aria-label', label);
      return zoom;
    });
  }

  private press(): void {
    this.choices.forEach((seconds, i) =>
      setAttribute(this.el.children[i]!, 'aria-pressed', String(seconds === this.chosen))
    );
  }
}

/** `5 min` */
function minutes(seconds: number): string {
  return `${String(Number((seconds / 60).toPrecision(2)))} min`;
}
