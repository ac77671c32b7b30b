/** A loader's workers, prefetch and threads: the kernel owns the values, the page only what is being changed. */

import {
  button,
  download,
  element,
  errorText,
  runOnce,
  setAttribute,
  setText,
  uniqueId
} from '../page/dom.js';
import type { Knobs, LoaderState } from '../stream/page_messages.js';
import type { CodeReply } from '../stream/protocol.js';

type Name = keyof Knobs;

/** A change is sent when nothing was changed for this long, in ms. */
const SETTLE_MS = 300;

interface Kind {
  readonly name: Name;
  readonly label: string;
  readonly what: string;
  readonly least: number;
}

/** The reasons why knobs do not apply, by their names; those that apply have none. */
type Reasons = Partial<Record<Name, string>>;

const KINDS: readonly Kind[] = [
  { name: 'workers', label: 'Workers', what: 'Processes that load for torchvision', least: 0 },
  {
    name: 'prefetch',
    label: 'Prefetch',
    what: 'Batches in flight: per worker for torchvision, in all for DALI',
    least: 1
  },
  { name: 'threads', label: 'Threads', what: 'Threads of DALI, or of threads', least: 1 }
];

interface KnobActions {
  set(knobs: Partial<Knobs>): Promise<LoaderState>;
  code(): Promise<CodeReply>;
  failed(message: string): void;
}

export class KnobsControl {
  readonly el = element('details', 'km-knobs');
  private readonly summary = element('summary', 'km-disclosure');
  private readonly steppers: ReadonlyMap<Name, Stepper>;
  private readonly reason = element('div', 'km-reason');
  private readonly code = button('Copy as code', 'km-code', () => {
    void runOnce(
      this.code,
      () => this.copyCode(),
      message => this.actions.failed(message)
    );
  });
  private why: Reasons = {};
  private knobs: Knobs = { workers: 0, prefetch: 0, threads: null };
  /** Changes without a reply yet. */
  private wanted: Partial<Knobs> = {};
  private changes = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly actions: KnobActions) {
    this.reason.id = uniqueId('km-reason');
    const row = element('div', 'km-steppers');
    // JupyterLab has shortcuts on digits and arrows.
    row.setAttribute('data-lm-suppress-shortcuts', 'true');
    row.addEventListener('keydown', event => event.stopPropagation());
    this.steppers = new Map(
      KINDS.map(kind => [kind.name, new Stepper(kind, value => this.change(kind.name, value))])
    );
    row.append(...[...this.steppers.values()].map(({ el }) => el));
    setAttribute(
      this.code,
      'title',
      'A Python file with its DALI pipeline, which needs no kernel_monitor'
    );
    this.el.append(this.summary, row, this.reason, this.code);
  }

  update(state: LoaderState): void {
    this.knobs = state.knobs;
    this.why = reasons(state);
    const lines = KINDS.filter(({ name }) => name in this.why).map(
      ({ name, label }) => `${label}: ${this.why[name]!}`
    );
    setText(this.reason, lines.join('\n'));
    this.reason.hidden = lines.length === 0;
    const hasPipeline = state.backends.some(
      ({ name, available }) => available && name.startsWith('dali-')
    );
    this.code.hidden = !hasPipeline || state.ended === true;
    this.show();
  }

  /** Into the clipboard; where there is none (pages on plain HTTP), as a file. */
  private async copyCode(): Promise<void> {
    const { filename, code } = await this.actions.code();
    try {
      await navigator.clipboard.writeText(code);
    } catch (error) {
      console.debug('kernel_monitor: no clipboard.', error);
      download(filename, code, 'text/x-python');
      return;
    }
    setText(this.code, 'Copied');
    setTimeout(() => setText(this.code, 'Copy as code'), 1500);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private show(): void {
    const shown = { ...this.knobs, ...this.wanted };
    for (const [name, stepper] of this.steppers) {
      const reason = name in this.why ? this.reason.id : null;
      stepper.update(shown[name], name in this.wanted, reason);
    }
    const parts = KINDS.filter(({ name }) => this.knobs[name] !== null).map(
      ({ name, label }) => `${label} ${this.knobs[name]!}`
    );
    setText(this.summary, parts.join(' · '));
  }

  private change(name: Name, value: number): void {
    this.wanted = { ...this.wanted, [name]: value };
    this.changes += 1;
    this.show();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.send(), SETTLE_MS);
  }

  private async send(): Promise<void> {
    const change = this.changes;
    const wanted = Object.fromEntries(
      Object.entries(this.wanted).filter(([name, value]) => this.knobs[name as Name] !== value)
    ) as Partial<Knobs>;
    if (Object.keys(wanted).length > 0) {
      try {
        await this.actions.set(wanted);
      } catch (error) {
        this.settle(change);
        const asked = Object.entries(wanted).map(([name, value]) => `${name}=${value}`);
        this.actions.failed(`${asked.join(', ')} was not taken: ${errorText(error)}`);
        return;
      }
    }
    // A frame that left the kernel before the change did may still be on its way.
    this.timer = setTimeout(() => this.settle(change), SETTLE_MS);
  }

  /** Show the kernel's own values again, unless something was changed since. */
  private settle(change: number): void {
    if (change === this.changes) {
      this.wanted = {};
      this.show();
    }
  }
}

function reasons({ knobs, backends }: LoaderState): Reasons {
  if (knobs.threads !== null) {
    return {};
  }
  const dali = backends.find(({ name }) => name === 'dali-cpu')?.reason;
  return {
    threads: dali ?? 'no backend of DALI can run here.',
    ...(knobs.workers === 0 ? { prefetch: 'without workers nothing is loaded ahead.' } : {})
  };
}

/** A number between two buttons. */
class Stepper {
  readonly el = element('div', 'km-stepper');
  private readonly input = element('input');
  private readonly buttons: readonly HTMLButtonElement[];
  private value: number | null = null;

  constructor(
    { label, what, least }: Kind,
    private readonly onChange: (value: number) => void
  ) {
    const text = element('label', 'km-label', label);
    this.input.id = uniqueId('km-knob');
    text.htmlFor = this.input.id;
    this.input.type = 'number';
    this.input.min = String(least);
    this.input.step = '1';
    this.el.title = what;
    this.input.addEventListener('input', () => {
      const value = this.input.valueAsNumber;
      // A half-typed number is no value yet; the kernel validates the others.
      if (Number.isInteger(value) && value !== this.value) {
        this.take(value);
      }
    });
    this.input.addEventListener('change', () => this.write());
    this.buttons = [-1, 1].map(step => {
      const one = element('button', 'km-button km-step', step < 0 ? '−' : '+');
      one.type = 'button';
      // By keyboard the arrows of the number itself do this.
      one.tabIndex = -1;
      one.setAttribute('aria-label', `${step < 0 ? 'Fewer' : 'More'}: ${label}`);
      one.addEventListener('click', () => {
        const next = Math.max(least, (this.value ?? least) + step);
        if (next !== this.value) {
          this.take(next);
          this.write();
        }
      });
      return one;
    });
    const box = element('div', 'km-box');
    box.append(this.buttons[0]!, this.input, this.buttons[1]!);
    this.el.append(text, box);
  }

  /**
   * @param value - null where there is none
   * @param reason - id of the element that says why it does not apply; null where it does
   */
  update(value: number | null, pending: boolean, reason: string | null): void {
    const changed = value !== this.value;
    this.value = value;
    for (const one of [this.input, ...this.buttons]) {
      one.disabled = reason !== null;
    }
    setAttribute(this.input, 'aria-describedby', reason);
    setAttribute(this.el, 'aria-busy', pending ? 'true' : null);
    // Not while it is being typed: an emptied field would fill itself again.
    if (changed || this.input.ownerDocument.activeElement !== this.input) {
      this.write();
    }
  }

  private take(value: number): void {
    this.value = value;
    this.onChange(value);
  }

  private write(): void {
    const text = this.value === null ? '' : String(this.value);
    if (this.input.value !== text) {
      this.input.value = text;
    }
  }
}
