/** A faster engine, offered once to a loop that waits for its data (its Python half: kernel_monitor/runtime/current_verdict.py). */

import type { Offer } from './analysis.js';
import { button, element, errorText, setAttribute, setText } from '../page/dom.js';

interface OfferActions {
  /** It was accepted: as if its radio had been chosen. */
  take(engine: string): void;
  /** It was declined: the kernel remembers that, for all pages. */
  decline(): Promise<void>;
  failed(message: string): void;
  /** It has disappeared, and with it the button that had the keyboard's focus. */
  disappeared(): void;
}

export class OfferView {
  readonly el = element('div', 'km-offer');
  /** Always in the page: assistive technology announces only changes in a live region that exists. */
  private readonly sentence = element('p');
  private readonly buttons = element('div', 'km-buttons');
  private readonly yes = button('', 'km-yes', () => this.actions.take(this.engine));
  private readonly no = button('No thanks', 'km-quiet', () => void this.decline());
  private engine = '';
  private busy = false;

  constructor(private readonly actions: OfferActions) {
    this.sentence.setAttribute('aria-live', 'polite');
    // JupyterLab has shortcuts on Enter.
    this.el.setAttribute('data-lm-suppress-shortcuts', 'true');
    this.buttons.append(this.yes, this.no);
    this.el.append(this.sentence, this.buttons);
    this.update(null);
  }

  /** @param offer - null: none */
  update(offer: Offer | null): void {
    const hadFocus = this.buttons.contains(document.activeElement);
    this.engine = offer?.engine ?? '';
    setText(this.sentence, offer?.sentence ?? '');
    setText(this.yes, offer === null ? '' : `Switch to ${offer.engine}`);
    setAttribute(this.el, 'data-engine', offer?.engine ?? null);
    this.buttons.hidden = offer === null;
    if (hadFocus && offer === null) {
      this.actions.disappeared();
    }
  }

  private async decline(): Promise<void> {
    if (this.busy) {
      return;
    }
    this.busy = true;
    try {
      await this.actions.decline();
    } catch (error) {
      this.actions.failed(`The offer could not be declined: ${errorText(error)}`);
    } finally {
      this.busy = false;
    }
  }
}
