/** The plug-in that puts the panel into the right sidebar and points it at the active notebook. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { Kernel } from '@jupyterlab/services';
import type { KernelSource } from '@kernel-monitor/widgets';
import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';

import { ActiveNotebook } from './notebooks.js';
import { MonitorPanel } from './panel.js';
import { openRecorded } from './replay.js';
import { IMonitorSettings } from './settings.js';

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
      notebook.look();
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
