/** The row of tools that are used now and then; in a narrow view it is behind the button *Tools*. */

import { button, element, setAttribute, uniqueId } from './dom.js';
import { note, wasOpen } from './open_state.js';

const NAME = 'tools';

export class Toolbar {
  readonly el = element('div', 'km-toolbar');
  /** Visible only where the view is too narrow for the row (narrow.css). */
  readonly toggle = button('Tools', 'km-menu km-tools', () => {
    this.isOpen = !this.isOpen;
    note(NAME, this.isOpen);
    this.show();
  });
  private isOpen = wasOpen(NAME);
  private needed = true;

  /** @param scope - the element that shows by its class whether the row is open */
  constructor(private readonly scope: HTMLElement) {
    this.el.id = uniqueId('km-tools');
    this.el.setAttribute('role', 'group');
    this.el.setAttribute('aria-label', 'Tools');
    this.toggle.setAttribute('aria-controls', this.el.id);
    // In a narrow view it shows three dots instead of its label.
    this.toggle.setAttribute('aria-label', 'Tools');
    this.toggle.title = 'Tools';
    this.show();
  }

  /** @param foldable - the view shows more than the tools */
  update(foldable: boolean): void {
    this.needed = !foldable;
    this.show();
  }

  /** Open it this time: only a person's own choice is remembered. */
  open(): void {
    this.isOpen = true;
    this.show();
  }

  private show(): void {
    this.toggle.hidden = this.needed;
    setAttribute(this.toggle, 'aria-expanded', String(this.isOpen));
    this.scope.classList.toggle('km-has-tools', this.isOpen || this.needed);
  }
}
