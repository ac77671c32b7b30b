/** Which front end shows a widget, and the line on what it cannot do. */

import { watchTheme } from '../charts/theme.js';
import { CopyLine, element, setAttribute, setText } from './dom.js';
import type { WidgetKernel } from '../stream/widget_kernel.js';

interface Globals {
  readonly google?: { readonly colab?: unknown };
  readonly acquireVsCodeApi?: unknown;
  readonly Jupyter?: { readonly notebook?: unknown };
}

/** VS Code runs outputs in a web view of its own, whose kernel connection does not carry the control channel. */
export function isVsCode(): boolean {
  return location.protocol === 'vscode-webview:' || 'acquireVsCodeApi' in globalThis;
}

/** The front end's name, by what its pages have and no other's. */
export function frontEnd(): string {
  const globals = globalThis as Globals;
  if (isVsCode()) {
    return 'VS Code';
  }
  if (globals.google?.colab !== undefined) {
    return 'Colab';
  }
  if (document.querySelector('marimo-mode, marimo-filename, marimo-user-config') !== null) {
    return 'marimo';
  }
  return globals.Jupyter?.notebook === undefined ? 'This front end' : 'nbclassic';
}

/** One line: which front end this is, and how the kernel is reached while a cell runs. */
export class FrontEndLine {
  readonly el = element('div', 'km-dashboard km-front-end');
  private readonly text = element('span');
  private readonly command = new CopyLine('kernel-monitor switch dali-cpu');
  private readonly stop: () => void;

  constructor(private readonly kernel: WidgetKernel) {
    this.el.setAttribute('role', 'note');
    this.el.append(this.text, this.command.el);
    this.stop = kernel.httpChanged.on(() => this.update());
    this.update();
  }

  dispose(): void {
    this.stop();
  }

  private update(): void {
    const { http } = this.kernel;
    const how =
      http === null
        ? 'charts are live, but while a cell runs clicks cannot reach the kernel. In a terminal:'
        : `charts are live, and clicks reach the kernel over ${new URL(http.url).host}, also while a cell runs.`;
    setText(this.text, `${frontEnd()}: ${how}`);
    this.command.el.hidden = http !== null;
  }
}

/**
 * Keep the attribute `data-surface` of elements at `light` or `dark`, as the page below them is: a front end's theme is
 * not the system's. Returns the function that stops it.
 */
export function followSurface(...elements: HTMLElement[]): () => void {
  const update = (): void => {
    elements.forEach(el => setAttribute(el, 'data-surface', surface(el)));
  };
  update();
  return watchTheme(update);
}

/** `light` or `dark`, by the first opaque background behind an element; null if there is none. */
function surface(el: Element): 'light' | 'dark' | null {
  for (let at: Element | null = el; at !== null; at = parent(at)) {
    const [red = 0, green = 0, blue = 0, alpha = 1] = rgba(getComputedStyle(at).backgroundColor);
    if (alpha > 0.5) {
      return 0.299 * red + 0.587 * green + 0.114 * blue < 128 ? 'dark' : 'light';
    }
  }
  return null;
}

function parent(el: Element): Element | null {
  const root = el.getRootNode();
  return el.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
}

/** The channels of a CSS colour, each from 0 to 255, and its alpha. */
function rgba(color: string): number[] {
  const usual = /^rgba?\(([\d., ]+)\)$/.exec(color);
  if (usual !== null) {
    return usual[1]!.split(',').map(Number);
  }
  // Painted, as colours have many notations: marimo's are oklch.
  const context = document.createElement('canvas').getContext('2d');
  if (context === null || color === 'transparent') {
    return [0, 0, 0, 0];
  }
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [red = 0, green = 0, blue = 0, alpha = 0] = context.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
}
