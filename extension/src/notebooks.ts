/** Which notebook the sidebar belongs to: the active one, and the last active one while something else is. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { Toolbar } from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

/** What is used of a notebook's panel; `@jupyterlab/notebook` itself is not depended upon. */
export type NotebookWidget = Widget & {
  readonly sessionContext: ISessionContext;
  readonly toolbar: Toolbar;
};

export function isNotebook(widget: Widget | null): widget is NotebookWidget {
  return widget !== null && widget.hasClass('jp-NotebookPanel') && 'sessionContext' in widget;
}

export class ActiveNotebook {
  constructor(private readonly shell: JupyterFrontEnd.IShell) {
    shell.currentChanged?.connect(this.look, this);
  }

  /** Null before the first notebook and after the last one was closed. */
  get current(): NotebookWidget | null {
    return this._current;
  }

  get changed(): ISignal<this, NotebookWidget | null> {
    return this._changed;
  }

  /** Take the active notebook; failing that keep the one there is; failing that any that is open. */
  look(): void {
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
