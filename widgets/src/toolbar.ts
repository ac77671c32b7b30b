/** The row of what is done now and then; where there is little room, it is behind *Tools*. */

import { button, element, setAttribute, uniqueId } from './dom.js';
import { note, wasOpen } from './opened.js';

const NAME = 'tools';

export class Toolbar {
  readonly el = element('div', 'km-toolbar');
  /** Seen only where the row has no room of its own (narrow.css). */
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
    // Its words give way to three dots where it is narrow.
    this.toggle.setAttribute('aria-label', 'Tools');
    this.toggle.title = 'Tools';
    this.show();
  }

  /** @param foldable - there is something else to look at than what can be done */
  update(foldable: boolean): void {
    this.needed = !foldable;
    this.show();
  }

  /** Open it for once: only a person's own choice is remembered. */
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
