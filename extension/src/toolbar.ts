/**
 * The button in the toolbar of each notebook that has a Python kernel: it opens the sidebar, shows the kernel's state
 * by a mark, and receives `%monitor sidebar`.
 */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { GlanceSource } from '@kernel-monitor/widgets';
import type { IDisposable } from '@lumino/disposable';
import { type Message, MessageLoop } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { monitorIcon } from './icon.js';
import { isNotebook, KernelFollower, type NotebookWidget } from './notebooks.js';
import { IMonitorSidebar } from './sidebar.js';

const NAME = 'kernel-monitor';
/** The kernel's state in words; the mark's shape and colour are in style/toolbar.css. */
const TITLES = {
  none: 'Kernel monitor',
  running: 'Kernel monitor: measuring',
  paused: 'Kernel monitor: paused',
  'input-bound': 'Kernel monitor: measuring; the loop is input-bound, it waits for data'
} as const;
/** Messages after which a widget may be visible or no more. */
const MOVES = ['after-attach', 'before-detach', 'after-show', 'after-hide'];

export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:toolbar',
  description: "Adds a button to each notebook's toolbar that opens the sidebar.",
  autoStart: true,
  requires: [IMonitorSidebar],
  activate: (app: JupyterFrontEnd, sidebar: IMonitorSidebar) => {
    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: panel =>
        isNotebook(panel) ? new NotebookButton(panel, app.shell, sidebar) : undefined
    });
  }
};

class NotebookButton implements IDisposable {
  constructor(
    private readonly panel: NotebookWidget,
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly sidebar: IMonitorSidebar
  ) {
    const { toolbar } = panel;
    this._item.addClass('jp-ToolbarButton');
    this._item.addClass('km-toolbar-button');
    this._button.type = 'button';
    this._button.className = 'jp-ToolbarButtonComponent';
    this._button.addEventListener('click', () => {
      this.press();
    });
    monitorIcon.element({ container: this._button, stylesheet: 'toolbarButton' });
    this._item.node.append(this._button);
    // Where JupyterLab's own button of the debugger stands.
    if (!toolbar.insertBefore('kernelName', NAME, this._item)) {
      toolbar.addItem(NAME, this._item);
    }
    this._follower = new KernelFollower(panel.sessionContext);
    this._follower.changed.connect(this.follow, this);
    sidebar.changed.connect(this.revealIfAsked, this);
    document.addEventListener('visibilitychange', this.updateVisibility);
    MessageLoop.installMessageHook(panel, this.onMessage);
    this.follow();
  }

  get isDisposed(): boolean {
    return this._item.isDisposed;
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    MessageLoop.removeMessageHook(this.panel, this.onMessage);
    document.removeEventListener('visibilitychange', this.updateVisibility);
    this.sidebar.changed.disconnect(this.revealIfAsked, this);
    this._follower.dispose();
    this._source?.dispose();
    this._item.dispose();
  }

  /** The notebook has another kernel, or none that can be monitored. */
  private follow(): void {
    const { kernel } = this._follower;
    this._source?.dispose();
    this._source = kernel === null ? null : new GlanceSource(kernel);
    this._source?.changed.on(() => {
      this.display();
    });
    this._source?.sidebarAsked.on(() => {
      this._source?.answerSidebar();
      this._isAsked = true;
      this.revealIfAsked();
    });
    this._isAsked = false;
    this._item.setHidden(kernel === null);
    this.revealIfAsked();
    this.updateVisibility();
    this.display();
  }

  /** Open the sidebar if a cell of this notebook asked for it, and it shows this kernel. */
  private revealIfAsked(): void {
    const { kernel } = this._follower;
    const isMine = kernel !== null && this.sidebar.kernel === kernel;
    if (isMine && this._isAsked) {
      this._isAsked = false;
      this.sidebar.reveal();
    }
  }

  private readonly onMessage = (_: unknown, message: Message): boolean => {
    if (MOVES.includes(message.type)) {
      queueMicrotask(this.updateVisibility); // once the panel has taken the message
    }
    return true;
  };

  private readonly updateVisibility = (): void => {
    this._source?.setVisible(this.panel.isVisible && !document.hidden);
  };

  private display(): void {
    const { state, glance } = this._source ?? { state: 'none', glance: null };
    const shown = state === 'running' && glance?.kind === 'input-bound' ? 'input-bound' : state;
    const { node } = this._item;
    if (node.dataset.state !== shown) {
      node.dataset.state = shown;
      this._button.title = TITLES[shown];
      this._button.setAttribute('aria-label', TITLES[shown]);
    }
  }

  private press(): void {
    if (this.shell.currentWidget !== this.panel) {
      this.shell.activateById(this.panel.id);
    }
    this.sidebar.reveal();
  }

  private _source: GlanceSource | null = null;
  /** A cell asked for the sidebar, which is to open when this notebook is the active one. */
  private _isAsked = false;
  private readonly _follower: KernelFollower;
  private readonly _item = new Widget();
  /** An element of HTML: of the toolkit's own button, axe finds that its ARIA attributes are not allowed. */
  private readonly _button = document.createElement('button');
}
