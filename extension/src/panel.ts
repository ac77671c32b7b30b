/** The sidebar's panel: the shared dashboard over the kernel of one notebook, or why there is none. */

import { PathExt } from '@jupyterlab/coreutils';
import type { Kernel } from '@jupyterlab/services';
import { KernelSource, mountDashboard, type MountedDashboard } from '@kernel-monitor/widgets';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { SettingsApplier } from './settings_applier.js';
import { monitorIcon } from './icon.js';
import { KernelFollower } from './kernels.js';
import { load } from './load.js';
import type { NotebookWidget } from './notebooks.js';
import type { IMonitorSettings } from './settings.js';

/** Shows the recording in `path` with the help of a kernel. */
export type OpenRecorded = (
  kernel: Kernel.IKernelConnection,
  source: KernelSource,
  path: string
) => Promise<void>;

export class MonitorPanel extends Widget {
  constructor(
    private readonly settings: IMonitorSettings,
    private readonly openRecorded: OpenRecorded
  ) {
    super();
    this.id = 'kernel-monitor-sidebar';
    this.addClass('km-sidebar');
    this.title.label = 'Kernel monitor';
    this.title.caption = 'Kernel monitor';
    this.title.className = 'km-sidebar-tab';
    this.title.icon = monitorIcon;
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

  /** The kernel that is shown; null while none is. */
  get kernel(): Kernel.IKernelConnection | null {
    return this._follower?.kernel ?? null;
  }

  /** The notebook's name. */
  get notebook(): string {
    return this._notebook.textContent;
  }

  /** Another kernel is shown, or none. */
  get sourceChanged(): ISignal<this, void> {
    return this._sourceChanged;
  }

  /** Open the choice of charts. */
  chooseCharts(): void {
    this._view?.chooseCharts();
  }

  /** Show another notebook, or say that there is none. */
  follow(notebook: NotebookWidget | null): void {
    const before = this._follower?.context.path;
    this._follower?.dispose();
    this._follower = null;
    if (notebook === null) {
      this.showHeader(
        '',
        '',
        before === undefined
          ? NO_NOTEBOOK
          : `${PathExt.basename(before)} was closed. ${NO_NOTEBOOK}`
      );
      this.unmount();
      this._sourceChanged.emit();
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
    Signal.clearData(this);
    super.dispose();
  }

  protected override onAfterShow(): void {
    document.body.dataset.kmSidebar = 'shown';
    this.mountView();
  }

  protected override onAfterHide(): void {
    delete document.body.dataset.kmSidebar;
  }

  private refresh(): void {
    this.unmount();
    this.label();
    const { kernel } = this;
    if (kernel !== null) {
      this.mount(kernel);
    }
    this._sourceChanged.emit();
  }

  private mount(kernel: Kernel.IKernelConnection): void {
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
    this._applier = new SettingsApplier(source, this.settings);
    if (this.isVisible) {
      this.mountView();
    }
  }

  /** The dashboard of the kernel that is followed. One that nobody has looked at yet does not slow the page's load. */
  private mountView(): void {
    const { kernel, _source: source } = this;
    if (kernel === null || source === null || this._view !== null) {
      return;
    }
    const context = this._follower!.context;
    this._view = mountDashboard(this._body, source, {
      compact: true,
      restart: () => context.restartKernel(),
      openRecorded: path => this.openRecorded(kernel, source, path)
    });
  }

  private unmount(): void {
    this._view?.dispose();
    this._applier?.dispose();
    this._source?.dispose();
    this._view = null;
    this._source = null;
    this._body.replaceChildren();
  }

  private label(): void {
    const follower = this._follower;
    if (follower !== null && !follower.context.isDisposed) {
      const { path, kernelDisplayName } = follower.context;
      this.showHeader(path, kernelDisplayName, follower.kernel === null ? follower.words : '');
    }
  }

  private showHeader(path: string, kernel: string, words: string): void {
    this._notebook.textContent = PathExt.basename(path);
    this._notebook.title = path;
    this._kernel.textContent = kernel;
    this._words.textContent = words;
    this._words.hidden = words === '';
  }

  private _follower: KernelFollower | null = null;
  private _source: KernelSource | null = null;
  private _applier: SettingsApplier | null = null;
  private _view: MountedDashboard | null = null;
  private readonly _sourceChanged = new Signal<this, void>(this);
  private readonly _notebook = document.createElement('span');
  private readonly _kernel = document.createElement('span');
  private readonly _words = document.createElement('p');
  private readonly _body = document.createElement('div');
}

const NO_NOTEBOOK = 'Open a notebook to see what its kernel does.';
