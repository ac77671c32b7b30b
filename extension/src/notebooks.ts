/** The notebook that the sidebar belongs to, and the kernel of a notebook. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { Toolbar } from '@jupyterlab/ui-components';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

/** The part of a notebook's panel that is used: nothing here depends on `@jupyterlab/notebook`. */
export type NotebookWidget = Widget & {
  readonly sessionContext: ISessionContext;
  readonly toolbar: Toolbar;
};

export function isNotebook(widget: Widget | null): widget is NotebookWidget {
  return widget !== null && widget.hasClass('jp-NotebookPanel') && 'sessionContext' in widget;
}

/** The active notebook, and the last active one while something else is active. */
export class ActiveNotebook {
  constructor(private readonly shell: JupyterFrontEnd.IShell) {
    shell.currentChanged?.connect(this.update, this);
  }

  /** Null before the first notebook and after the last one was closed. */
  get current(): NotebookWidget | null {
    return this._current;
  }

  get changed(): ISignal<this, NotebookWidget | null> {
    return this._changed;
  }

  /** Take the active notebook; failing that keep the one there is; failing that any that is open. */
  update(): void {
    const active = this.shell.currentWidget;
    if (isNotebook(active)) {
      this.set(active);
    } else if (this._current === null) {
      this.set([...this.shell.widgets('main')].find(isNotebook) ?? null);
    }
  }

  private set(next: NotebookWidget | null): void {
    if (next === this._current) {
      return;
    }
    this._current?.disposed.disconnect(this.closed, this);
    this._current = next;
    next?.disposed.connect(this.closed, this);
    this._changed.emit(next);
  }

  private closed(): void {
    const active = this.shell.currentWidget;
    this.set(isNotebook(active) && !active.isDisposed ? active : null);
  }

  private _current: NotebookWidget | null = null;
  private readonly _changed = new Signal<this, NotebookWidget | null>(this);
}

/** Follows the kernel of one notebook: which connection it has, and whether it is a Python kernel. */
export class KernelFollower implements IDisposable {
  constructor(readonly context: ISessionContext) {
    context.kernelChanged.connect(this.refresh, this);
    context.disposed.connect(this.dispose, this);
    this.refresh();
  }

  /** The connection to a Python kernel; null while there is none. */
  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  /** The reason why there is no such connection, as a sentence for the person. */
  get reason(): string {
    return this._reason;
  }

  /** Another connection, or none. Restarts keep the connection: its own signals report them. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this.context.kernelChanged.disconnect(this.refresh, this);
    this.context.disposed.disconnect(this.dispose, this);
    this._kernel = null;
    Signal.clearData(this);
  }

  private refresh(): void {
    this.inspect().catch((error: unknown) => {
      const reason = error instanceof Error ? error.message : String(error);
      this.set(null, `What this notebook's kernel is could not be found out: ${reason}`);
    });
  }

  private async inspect(): Promise<void> {
    const kernel = this.context.session?.kernel ?? null;
    if (kernel === null) {
      this.set(null, 'This notebook has no kernel.');
      return;
    }
    // From the server, not from the kernel, whose shell would answer only after the running cell.
    const spec = await kernel.spec;
    if (this._isDisposed || kernel !== this.context.session?.kernel) {
      return;
    }
    const language = spec?.language.toLowerCase() ?? 'python';
    if (language === 'python') {
      this.set(kernel, '');
    } else {
      const name = spec?.display_name ?? kernel.name;
      this.set(
        null,
        `The kernel “${name}” runs ${language}; kernel_monitor works in Python kernels.`
      );
    }
  }

  private set(kernel: Kernel.IKernelConnection | null, reason: string): void {
    if (kernel !== this._kernel || reason !== this._reason) {
      this._kernel = kernel;
      this._reason = reason;
      this._changed.emit();
    }
  }

  private _kernel: Kernel.IKernelConnection | null = null;
  private _reason = 'Waiting for the kernel…';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}
