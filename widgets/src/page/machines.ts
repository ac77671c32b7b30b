/** Above the charts: a button for each other machine, which shows its cores, or one row for all of them. */

import type { MonitorSource } from '../stream/source.js';
import type { Schema } from '../stream/page_messages.js';
import { button, element, errorText, setAttribute, setText } from './dom.js';

type Node = NonNullable<Schema['nodes']>[number];

/** States in which the kernel's monitor can be asked. */
const LIVE = new Set(['running', 'paused', 'stopped']);

export class Machines {
  readonly el = element('div', 'km-machines');
  private readonly label = element('span', 'km-machines-label', 'Machines');
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private readonly all = button('', 'km-machine', () => void this.toggleAll());
  private readonly error = element('span', 'km-machines-error');
  private shown: Schema['nodes'];

  constructor(private readonly source: MonitorSource) {
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-label', 'Machines');
    this.error.setAttribute('role', 'alert');
    this.el.append(this.label, this.all, this.error);
    this.el.hidden = true;
  }

  /** Show the machines of the source's schema; nothing where the chart is not shown or cannot be changed. */
  update(): void {
    const { settings, connection } = this.source;
    const nodes =
      settings?.charts.includes('nodes') && LIVE.has(connection.state) ? this.nodes() : [];
    this.el.hidden = nodes.length === 0;
    const state = nodes.length > 0 ? this.source.schema?.nodes : undefined;
    if (state === this.shown) {
      return;
    }
    this.shown = state;
    for (const [id, el] of this.buttons) {
      if (!nodes.some(node => node.id === id)) {
        el.remove();
        this.buttons.delete(id);
      }
    }
    nodes.forEach(node => this.show(node));
    this.all.hidden = nodes.length < 3;
    setText(this.all, nodes.every(node => node.folded) ? 'unfold all' : 'fold all');
    this.el.append(this.all, this.error);
  }

  private nodes(): readonly Node[] {
    return (this.source.schema?.nodes ?? []).filter(node => node.cores.length > 0);
  }

  private show(node: Node): void {
    let el = this.buttons.get(node.id);
    if (el === undefined) {
      el = button('', 'km-machine', () => void this.toggle(node.id));
      this.buttons.set(node.id, el);
      this.el.append(el);
    }
    setText(el, `${node.folded ? '▸' : '▾'} ${node.name}`);
    setAttribute(el, 'aria-expanded', String(!node.folded));
    setAttribute(el, 'aria-label', `Cores of ${node.name}`);
    el.title = node.folded
      ? `Show the ${node.cores.length} cores of ${node.name}`
      : `Show the mean of the ${node.cores.length} cores of ${node.name}`;
  }

  private async toggle(id: string): Promise<void> {
    await this.ask(
      this.nodes().flatMap(node => ((node.id === id) === node.folded ? [node.id] : []))
    );
  }

  private async toggleAll(): Promise<void> {
    await this.ask(this.nodes().every(node => node.folded) ? ['all'] : []);
  }

  /** Have the cores of these machines shown, and those of no other. */
  private async ask(unfolded: string[]): Promise<void> {
    try {
      await this.source.configure({ unfolded: unfolded.length > 0 ? unfolded : ['none'] });
      setText(this.error, '');
    } catch (error) {
      setText(this.error, `That was not set: ${errorText(error)}`);
    }
  }
}
