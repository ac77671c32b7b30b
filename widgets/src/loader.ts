/** One loader's radios and its counter: the loader's state is the kernel's, only the click is the page's. */

import { element, errorText, setAttribute, setText, uniqueId } from './dom.js';
import type { Backend, LoaderState } from './wire.js';

/** How long a click's choice is shown after its answer, in ms. */
const SETTLE_MS = 300;

const NUMBER = new Intl.NumberFormat('en-US');

export interface LoaderActions {
  switchTo(loader: string, backend: string): Promise<LoaderState>;
  failed(message: string): void;
}

interface Radio {
  readonly el: HTMLElement;
  readonly reason: HTMLElement;
  available: boolean;
}

export class LoaderControl {
  readonly el = element('section', 'km-loader');
  private readonly label = element('span', 'km-label', 'Loader');
  private readonly group = element('div', 'km-radios');
  private readonly reasons = element('div', 'km-reasons');
  private readonly counter = element('div', 'km-counter');
  private readonly counts = element('span');
  private readonly wrong = element('strong', 'km-wrong');
  private readonly radios = new Map<string, Radio>();
  private state: LoaderState;
  /** What was clicked, until the kernel's own state says so. */
  private asked: string | null = null;
  private clicks = 0;

  constructor(
    state: LoaderState,
    private readonly actions: LoaderActions
  ) {
    this.state = state;
    this.label.id = uniqueId('km-loader');
    this.group.setAttribute('role', 'radiogroup');
    this.group.setAttribute('aria-labelledby', this.label.id);
    this.group.addEventListener('keydown', this.onKey);
    this.counter.append(this.counts, this.wrong);
    const line = element('div', 'km-line');
    line.append(this.label, this.group);
    this.el.append(line, this.reasons, this.counter);
  }

  /** Show the kernel's state; `named` when there are several loaders. */
  update(state: LoaderState, named: boolean): void {
    this.state = state;
    const name = named ? `Loader ${state.name}` : 'Loader';
    setText(this.label, state.ended ? `${name} (ended)` : name);
    this.group.hidden = this.reasons.hidden = state.ended === true;
    for (const backend of state.backends) {
      this.show(this.radios.get(backend.name) ?? this.addRadio(backend.name), backend);
    }
    for (const [name, radio] of this.radios) {
      if (!state.backends.some(backend => backend.name === name)) {
        radio.el.remove();
        radio.reason.remove();
        this.radios.delete(name);
      }
    }
    this.check();
    setText(this.counts, counterText(state));
    setText(this.wrong, wrongText(state));
  }

  private addRadio(name: string): Radio {
    const el = element('div', 'km-radio');
    el.setAttribute('role', 'radio');
    el.setAttribute('aria-label', name);
    el.append(element('span', 'km-dot'), element('span', '', name));
    const reason = element('div', 'km-reason');
    reason.id = uniqueId('km-reason');
    const radio = { el, reason, available: true };
    el.addEventListener('click', () => {
      el.focus();
      this.choose(name);
    });
    this.radios.set(name, radio);
    this.group.append(el);
    this.reasons.append(reason);
    return radio;
  }

  private show(radio: Radio, { name, available, reason }: Backend): void {
    radio.available = available;
    const why = available ? '' : (reason ?? 'Not available.');
    setText(radio.reason, why === '' ? '' : `${name}: ${why}`);
    radio.reason.hidden = available;
    setAttribute(radio.el, 'aria-disabled', available ? null : 'true');
    setAttribute(radio.el, 'aria-describedby', available ? null : radio.reason.id);
    setAttribute(radio.el, 'title', available ? null : why);
  }

  /** Which radio is checked: the click, else what the kernel is asked for, else what it uses. */
  private check(): void {
    const { backend, wanted } = this.state;
    const checked = this.asked ?? wanted ?? backend;
    const tabbable = this.radios.has(checked) ? checked : [...this.radios.keys()][0];
    for (const [name, { el }] of this.radios) {
      setAttribute(el, 'aria-checked', String(name === checked));
      el.tabIndex = name === tabbable ? 0 : -1;
      el.classList.toggle('km-pending', name === checked && name !== backend);
      el.classList.toggle('km-active', name === backend);
    }
  }

  private choose(name: string): void {
    const radio = this.radios.get(name);
    if (!radio?.available) {
      return;
    }
    const clicked = performance.now();
    const click = ++this.clicks;
    this.asked = name;
    setAttribute(radio.el, 'data-acknowledged', null);
    this.check();
    this.actions
      .switchTo(this.state.id, name)
      .then(
        () => {
          setAttribute(radio.el, 'data-acknowledged', (performance.now() - clicked).toFixed(1));
        },
        (error: unknown) => {
          if (this.clicks === click) {
            this.asked = null;
            this.check();
          }
          this.actions.failed(`${name} was not taken: ${errorText(error)}`);
        }
      )
      .finally(() => {
        // A frame that left the kernel before the click did may still be on its way.
        setTimeout(() => {
          if (this.clicks === click) {
            this.asked = null;
            this.check();
          }
        }, SETTLE_MS);
      });
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    const names = [...this.radios.keys()];
    const at = names.findIndex(name => this.radios.get(name)!.el === event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const steps: Record<string, number> = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      Home: 0,
      End: names.length - 1
    };
    const step = steps[event.key];
    if (step !== undefined) {
      // Arrows only move: choosing has consequences for a training run, so it takes a key of its own.
      this.radios.get(names[(step + names.length) % names.length]!)!.el.focus();
    } else if (event.key === ' ' || event.key === 'Enter') {
      this.choose(names[at]!);
    } else {
      return;
    }
    // JupyterLab has shortcuts on these keys.
    event.preventDefault();
    event.stopPropagation();
  };
}

/** `epoch 2 · batch 31 of 64 · 992 of 2,048 samples, each once · 512 by dali-cpu, 480 by torchvision` */
export function counterText(state: LoaderState): string {
  if (state.batch === 0 && state.epoch === 0) {
    return 'No batch delivered yet.';
  }
  const of = (n: number, total: number | null): string =>
    total === null ? NUMBER.format(n) : `${NUMBER.format(n)} of ${NUMBER.format(total)}`;
  const once = state.samples > 0 && state.lost === 0 && state.doubled === 0 ? ', each once' : '';
  const decoded = Object.entries(state.decoded)
    .filter(([, count]) => count > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([engine, count]) => `${NUMBER.format(count)} by ${engine}`);
  return [
    // Counted as people count; Python's first epoch is 0.
    `epoch ${NUMBER.format(state.epoch + 1)}`,
    `batch ${of(state.batch, state.batches)}`,
    `${of(state.samples, state.planned)} samples${once}`,
    ...(decoded.length > 0 ? [decoded.join(', ')] : [])
  ].join(' · ');
}

/** What must never happen, said loudly; empty when it did not. */
export function wrongText({ lost, doubled }: LoaderState): string {
  const parts = [
    ...(lost > 0 ? [`${NUMBER.format(lost)} lost`] : []),
    ...(doubled > 0 ? [`${NUMBER.format(doubled)} delivered twice`] : [])
  ];
  return parts.length === 0 ? '' : `Samples of this epoch: ${parts.join(', ')}.`;
}
