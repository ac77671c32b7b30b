/** Follow the kernel of one notebook: which connection it has, and whether it is a Python kernel. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

export class KernelFollower implements IDisposable {
  constructor(readonly context: ISessionContext) {
    context.kernelChanged.connect(this.look, this);
    context.disposed.connect(this.dispose, this);
    this.look();
  }

  /** The connection to a Python kernel; null while there is none. */
  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  /** Why there is no such connection, for the person in front of it. */
  get words(): string {
    return this._words;
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
    this.context.kernelChanged.disconnect(this.look, this);
    this.context.disposed.disconnect(this.dispose, this);
    this._kernel = null;
    Signal.clearData(this);
  }

  private look(): void {
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

  private set(kernel: Kernel.IKernelConnection | null, words: string): void {
    if (kernel !== this._kernel || words !== this._words) {
      this._kernel = kernel;
      this._words = words;
      this._changed.emit();
    }
  }

  private _kernel: Kernel.IKernelConnection | null = null;
  private _words = 'Waiting for the kernel…';
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}
