/** The plug-in that puts the panel into the right sidebar and points it at the active notebook. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { PathExt } from '@jupyterlab/coreutils';
import type { Kernel } from '@jupyterlab/services';
import { KernelSource, mountDashboard, type MountedDashboard } from '@kernel-monitor/widgets';
import { Token } from '@lumino/coreutils';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { monitorIcon } from './icon.js';
import { load } from './load.js';
import { ActiveNotebook, KernelFollower, type NotebookWidget } from './notebooks.js';
import { openRecorded } from './replay.js';
import { IMonitorSettings, SettingsApplier } from './settings.js';

const NO_NOTEBOOK = 'Open a notebook to see what its kernel does.';

export interface IMonitorSidebar {
  /** The monitor of the kernel that is shown; null while none is. */
  readonly source: KernelSource | null;
  /** The kernel that is shown; null while none is. */
  readonly kernel: Kernel.IKernelConnection | null;
  /** The notebook's name. */
  readonly notebook: string;
  /** Another kernel is shown, or none. */
  readonly changed: ISignal<unknown, void>;
  /** Open the sidebar. */
  reveal(): void;
  /** Open the choice of charts, in the sidebar. */
  chooseCharts(): void;
}

export const IMonitorSidebar = new Token<IMonitorSidebar>(
  'kernel-monitor:IMonitorSidebar',
  'The sidebar that shows what the kernel of the active notebook does.'
);

export const sidebarPlugin: JupyterFrontEndPlugin<IMonitorSidebar> = {
  id: 'kernel-monitor:sidebar',
  description: 'Shows what the kernel of the active notebook does.',
  autoStart: true,
  provides: IMonitorSidebar,
  requires: [IMonitorSettings],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    settings: IMonitorSettings,
    restorer: ILayoutRestorer | null
  ): IMonitorSidebar => {
    const panel = new MonitorPanel(settings, (kernel, source, path) =>
      openRecorded(app.shell, kernel, source, path)
    );
    app.shell.add(panel, 'right', { rank: 850, type: 'Kernel monitor' });
    restorer?.add(panel, panel.id);
    const notebook = new ActiveNotebook(app.shell);
    notebook.changed.connect((_, current) => {
      panel.follow(current);
    });
    void app.restored.then(() => {
      notebook.update();
    });
    return {
      get source() {
        return panel.source;
      },
      get kernel() {
        return panel.kernel;
      },
      get notebook() {
        return panel.notebook;
      },
      changed: panel.sourceChanged,
      chooseCharts: () => {
        panel.chooseCharts();
      },
      reveal: () => {
        app.shell.activateById(panel.id);
      }
    };
  }
};

/** Shows the recording in `path` with the help of a kernel. */
type OpenRecorded = (
  kernel: Kernel.IKernelConnection,
  source: KernelSource,
  path: string
) => Promise<void>;

/** The sidebar's panel: the shared dashboard over the kernel of one notebook, or why there is none. */
class MonitorPanel extends Widget {
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
      load: async show => {
        try {
          await load(kernel, show);
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
      this.showHeader(path, kernelDisplayName, follower.kernel === null ? follower.reason : '');
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
