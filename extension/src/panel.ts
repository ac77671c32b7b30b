/** The sidebar's panel: the shared dashboard over the kernel of one notebook, or the words for why there is none. */

import { PathExt } from '@jupyterlab/coreutils';
import { KernelSource, mountDashboard } from '@kernel-monitor/widgets';
import { Widget } from '@lumino/widgets';

import { KernelFollower } from './kernels.js';
import { load } from './load.js';
import type { NotebookWidget } from './notebooks.js';

export class MonitorPanel extends Widget {
  constructor() {
    super();
    this.id = 'kernel-monitor-sidebar';
    this.addClass('km-sidebar');
    this.title.caption = 'Kernel monitor';
    this.title.iconClass = 'km-sidebar-icon';
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Kernel monitor');
    this._notebook.className = 'km-sidebar-notebook';
    this._kernel.className = 'km-sidebar-kernel';
    this._words.className = 'km-sidebar-words';
    this._words.setAttribute('aria-live', 'polite');
    // A frame of our own: the dashboard sets the classes of the element that it is mounted in.
    const frame = document.createElement('div');
    frame.className = 'km-sidebar-body';
    frame.append(this._body);
    const header = document.createElement('header');
    header.className = 'km-sidebar-header';
    header.append(this._notebook, this._kernel);
    this.node.append(header, this._words, frame);
    this.follow(null);
  }

  /** The monitor of the kernel that is shown; null while none is. */
  get source(): KernelSource | null {
    return this._source;
  }

  /** Show another notebook, or say that there is none. */
  follow(notebook: NotebookWidget | null): void {
    const before = this._follower?.context.path;
    this._follower?.dispose();
    this._follower = null;
    if (notebook === null) {
      this.tell(
        '',
        '',
        before === undefined
          ? NO_NOTEBOOK
          : `${PathExt.basename(before)} was closed. ${NO_NOTEBOOK}`
      );
      this.unmount();
      return;
    }
    const follower = new KernelFollower(notebook.sessionContext);
    this._follower = follower;
    follower.changed.connect(this.refresh, this);
    notebook.sessionContext.propertyChanged.connect(this.label, this);
    this.refresh();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._follower?.dispose();
    this.unmount();
    super.dispose();
  }

  private refresh(): void {
    this.unmount();
    this.label();
    const kernel = this._follower?.kernel ?? null;
    if (kernel === null) {
      return;
    }
    const source = new KernelSource(kernel, {
      load: async say => {
        try {
          await load(kernel, say);
        } catch (error) {
          // The connection is what it was before: let the status say so again, beside the error.
          source.refresh();
          throw error;
        }
      }
    });
    this._source = source;
    this._view = mountDashboard(this._body, source, { compact: true });
  }

  private unmount(): void {
    this._view?.dispose();
    this._source?.dispose();
    this._view = null;
    this._source = null;
    this._body.replaceChildren();
  }

  private label(): void {
    const follower = this._follower;
    if (follower !== null && !follower.context.isDisposed) {
      const { path, kernelDisplayName } = follower.context;
      this.tell(path, kernelDisplayName, follower.kernel === null ? follower.words : '');
    }
  }

  private tell(path: string, kernel: string, words: string): void {
    this._notebook.textContent = PathExt.basename(path);
    this._notebook.title = path;
    this._kernel.textContent = kernel;
    this._words.textContent = words;
    this._words.hidden = words === '';
  }

  private _follower: KernelFollower | null = null;
  private _source: KernelSource | null = null;
  private _view: { dispose(): void } | null = null;
  private readonly _notebook = document.createElement('span');
  private readonly _kernel = document.createElement('span');
  private readonly _words = document.createElement('p');
  private readonly _body = document.createElement('div');
}

const NO_NOTEBOOK = 'Open a notebook to see what its kernel does.';
