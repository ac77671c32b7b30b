/** The plug-in that puts the panel into the right sidebar and points it at the active notebook. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import type { KernelSource } from '@kernel-monitor/widgets';
import { Token } from '@lumino/coreutils';

import { ActiveNotebook } from './notebooks.js';
import { MonitorPanel } from './panel.js';

export interface IMonitorSidebar {
  /** The monitor of the kernel that is shown; null while none is. */
  readonly source: KernelSource | null;
  /** Open the sidebar. */
  reveal(): void;
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
  optional: [ILayoutRestorer],
  activate: (app: JupyterFrontEnd, restorer: ILayoutRestorer | null): IMonitorSidebar => {
    const panel = new MonitorPanel();
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
      reveal: () => {
        app.shell.activateById(panel.id);
      }
    };
  }
};
