/** The *Charts* button and its panel: the charts to show, the interval, the recording and the price. */

import { button, element, errorText, setAttribute, setText, uniqueId } from './dom.js';
import { money } from '../analysis/figures.js';
import type { ChartChoice, Changes, Settings } from '../stream/page_messages.js';

/** Seconds between two rows, to choose from; the settings and `%monitor start --interval` take any. */
const INTERVALS: readonly number[] = [0.1, 0.2, 0.5, 1, 2, 5];

interface ChooserActions {
  configure(changes: Changes): Promise<void>;
  failed(message: string): void;
}

interface Box {
  readonly el: HTMLElement;
  readonly input: HTMLInputElement;
  readonly title: HTMLElement;
  readonly reason: HTMLElement;
}

export class Chooser {
  readonly button = button('Charts', 'km-menu', () => this.toggle());
  readonly panel = element('div', 'km-chooser');
  private readonly list = element('div', 'km-chooser-list');
  private readonly boxes = new Map<string, Box>();
  private readonly interval = element('select');
  private readonly record = element('input');
  private readonly price = element('input');
  private readonly priceField = element('label', 'km-field', 'Price per hour ');
  /** The price is being typed. */
  private typing = false;
  private settings: Settings | null = null;
  private charts: readonly ChartChoice[] = [];
  /** Settings that were requested, without a reply yet. */
  private asked: Changes = {};
  private asks = 0;

  constructor(private readonly actions: ChooserActions) {
    this.panel.id = uniqueId('km-chooser');
    this.panel.setAttribute('role', 'group');
    this.panel.setAttribute('aria-label', 'Charts and settings');
    // JupyterLab has shortcuts on Enter, Escape and letters.
    this.panel.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.panel.hidden = true;
    this.panel.addEventListener('keydown', event => {
      event.stopPropagation();
      if (event.key === 'Escape') {
        event.preventDefault();
        this.close();
      }
    });
    this.button.setAttribute('aria-expanded', 'false');
    this.button.setAttribute('aria-controls', this.panel.id);
    this.interval.addEventListener('change', () => {
      this.ask({ interval: Number(this.interval.value) });
    });
    this.record.type = 'checkbox';
    this.record.addEventListener('change', () => this.ask({ record: this.record.checked }));
    const every = element('label', 'km-field', 'Measure every ');
    every.append(this.interval);
    const record = element('label', 'km-field');
    record.append(this.record, element('span', '', 'Record the session'));
    this.price.type = 'text';
    this.price.size = 8;
    this.price.placeholder = '2.50 €';
    this.price.title =
      'What this machine costs: then each loader says what its images cost. 2.50 € + 0.30: and each CPU machine';
    this.price.addEventListener('input', () => (this.typing = true));
    this.price.addEventListener('change', () => {
      this.typing = false;
      this.ask({ price: this.price.value.trim() });
    });
    this.priceField.append(this.price);
    const fields = element('div', 'km-fields');
    fields.append(every, record, this.priceField);
    this.panel.append(this.list, fields);
  }

  /** Show the settings of the kernel's monitor; null hides the chooser. */
  update(settings: Settings | null, charts: readonly ChartChoice[]): void {
    this.settings = settings;
    this.charts = charts;
    this.button.hidden = settings === null;
    if (settings === null) {
      this.panel.hidden = true;
      setAttribute(this.button, 'aria-expanded', 'false');
    } else if (!this.panel.hidden) {
      this.show();
    }
  }

  open(): void {
    if (this.settings !== null) {
      this.panel.hidden = false;
      this.button.setAttribute('aria-expanded', 'true');
      this.show();
      this.panel.querySelector<HTMLElement>('input:not(:disabled)')?.focus();
    }
  }

  private close(): void {
    this.panel.hidden = true;
    this.button.setAttribute('aria-expanded', 'false');
    this.button.focus();
  }

  private toggle(): void {
    if (this.panel.hidden) {
      this.open();
    } else {
      this.close();
    }
  }

  /** The settings that are shown: those requested, else the kernel's. */
  private get now(): Settings {
    const settings = this.settings!;
    const { record = settings.record, interval, history, charts } = this.asked;
    return {
      ...settings,
      interval: interval ?? settings.interval,
      history: history ?? settings.history,
      charts: charts ?? settings.charts,
      record: record !== false
    };
  }

  private show(): void {
    const { charts, interval, record } = this.now;
    for (const choice of this.charts) {
      this.showBox(this.boxes.get(choice.id) ?? this.addBox(choice.id), choice, charts);
    }
    for (const [id, box] of this.boxes) {
      if (!this.charts.some(choice => choice.id === id)) {
        box.el.remove();
        this.boxes.delete(id);
      }
    }
    const choices = INTERVALS.includes(interval)
      ? INTERVALS
      : [...INTERVALS, interval].sort((a, b) => a - b);
    const options = [...this.interval.options];
    if (options.map(option => Number(option.value)).join() !== choices.join()) {
      this.interval.replaceChildren(
        ...choices.map(seconds => {
          const option = element('option', '', `${String(Number(seconds.toPrecision(3)))} s`);
          option.value = String(seconds);
          return option;
        })
      );
    }
    this.interval.value = String(interval);
    this.record.checked = record;
    this.showPrice();
  }

  private showPrice(): void {
    const { price, node_price: node, currency } = this.settings!;
    // Not while it is being typed, nor before the reply to it.
    if (!this.typing && !('price' in this.asked)) {
      const each = node === null || node === undefined ? '' : ` + ${node}`;
      const text = price === null ? '' : money(price, currency) + each;
      if (this.price.value !== text) {
        this.price.value = text;
      }
    }
  }

  private addBox(id: string): Box {
    const el = element('div', 'km-choice');
    const label = element('label');
    const input = element('input');
    const title = element('span');
    const reason = element('div', 'km-reason');
    input.type = 'checkbox';
    reason.id = uniqueId('km-choice');
    label.append(input, title);
    el.append(label, reason);
    input.addEventListener('change', () => {
      const chosen = new Set(this.now.charts);
      if (input.checked) {
        chosen.add(id);
      } else {
        chosen.delete(id);
      }
      this.ask({ charts: [...chosen] });
    });
    this.list.append(el);
    const box = { el, input, title, reason };
    this.boxes.set(id, box);
    return box;
  }

  private showBox(box: Box, choice: ChartChoice, charts: readonly string[]): void {
    const { id, title, available, reason } = choice;
    box.input.checked = charts.includes(id);
    // A chart that is shown by default stands on the page with the reason why it is empty, so it can be chosen again.
    box.input.disabled = !available && !choice.default && !box.input.checked;
    box.el.classList.toggle('km-missing', !available);
    setText(box.title, title);
    setText(box.reason, available ? '' : (reason ?? 'Not measured on this machine.'));
    box.reason.hidden = available;
    setAttribute(box.input, 'aria-describedby', available ? null : box.reason.id);
  }

  private ask(changes: Changes): void {
    const ask = ++this.asks;
    this.asked = { ...this.asked, ...changes };
    this.panel.setAttribute('aria-busy', 'true');
    this.actions
      .configure(changes)
      .catch((error: unknown) => {
        this.actions.failed(`That was not set: ${errorText(error)}`);
      })
      .finally(() => {
        if (ask === this.asks) {
          this.asked = {};
          this.panel.removeAttribute('aria-busy');
          if (!this.panel.hidden && this.settings !== null) {
            this.show();
          }
        }
      });
  }
}
