/** Small helpers over the DOM. Data only ever becomes text. */

export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  text = ''
): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag);
  if (className !== '') {
    el.className = className;
  }
  if (text !== '') {
    el.textContent = text;
  }
  return el;
}

/** Set an element's text if it differs: assistive technology announces every change in a live region. */
export function setText(el: Element, text: string): void {
  if (el.textContent !== text) {
    el.textContent = text;
  }
}

/** Set an attribute if it differs; null removes it. */
export function setAttribute(el: Element, name: string, value: string | null): void {
  if (el.getAttribute(name) !== value) {
    if (value === null) {
      el.removeAttribute(name);
    } else {
      el.setAttribute(name, value);
    }
  }
}

export function button(label: string, className: string, click: () => void): HTMLButtonElement {
  const el = element('button', `km-button ${className}`.trim(), label);
  el.type = 'button';
  el.addEventListener('click', click);
  return el;
}

/**
 * Run a button's action unless it runs already, and show on the button that it runs.
 *
 * @param failed - takes the sentence on how it failed
 */
export async function runOnce(
  which: HTMLButtonElement,
  action: () => Promise<void>,
  failed: (message: string) => void
): Promise<void> {
  if (which.hasAttribute('aria-busy')) {
    return;
  }
  which.setAttribute('aria-busy', 'true');
  try {
    await action();
  } catch (error) {
    failed(`${which.textContent} failed: ${errorText(error)}`);
  } finally {
    which.removeAttribute('aria-busy');
  }
}

let ids = 0;

/** An id that no other element of the page has, for ARIA references. */
export function uniqueId(prefix: string): string {
  ids += 1;
  // Two bundles (cell and sidebar) share the page, each with a counter of its own.
  return `${prefix}-${SALT}-${ids}`;
}

const SALT = Math.random().toString(36).slice(2, 8);

/** A line of code with a button that copies it. */
export class CopyLine {
  readonly el = element('div', 'km-copy');
  private readonly code = element('code');
  private readonly copy = button('Copy', '', () => void this.write());
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(text: string) {
    this.el.append(this.code, this.copy);
    this.text = text;
  }

  set text(text: string) {
    setText(this.code, text);
    this.copy.setAttribute('aria-label', `Copy ${text}`);
  }

  private async write(): Promise<void> {
    const text = this.code.textContent;
    let word = 'Copied';
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {
      // Pages on plain HTTP have no clipboard: leave the line selected instead.
      console.debug('kernel_monitor: no clipboard.', error);
      getSelection()?.selectAllChildren(this.code);
      word = 'Selected';
    }
    setText(this.copy, word);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => setText(this.copy, 'Copy'), 1500);
  }
}

/** Hand the person a file. */
export function download(filename: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = element('a');
  link.href = url;
  link.download = filename;
  document.body.append(link);
  link.click();
  link.remove();
  // The browser reads the blob after the click has returned.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function errorText(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
