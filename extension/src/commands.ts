/** The palette's commands; they act on the kernel that the sidebar shows. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { download, type KernelSource } from '@kernel-monitor/widgets';

import { IMonitorSidebar } from './sidebar.js';

const CATEGORY = 'Kernel monitor';

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:commands',
  description:
    'Commands to show the monitor, to start and stop it, and to export what it measured.',
  autoStart: true,
  requires: [IMonitorSidebar],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, sidebar: IMonitorSidebar, palette: ICommandPalette | null) => {
    const { commands } = app;
    const add = (
      name: string,
      label: string,
      enabled: (source: KernelSource) => boolean,
      action: (source: KernelSource) => Promise<void>
    ): void => {
      commands.addCommand(`kernel-monitor:${name}`, {
        label,
        describedBy: { args: { type: 'object', properties: {} } },
        isEnabled: () => sidebar.source !== null && enabled(sidebar.source),
        execute: async () => {
          const { source } = sidebar;
          if (source === null) {
            return;
          }
          try {
            await action(source);
          } catch (error) {
            Notification.error(error instanceof Error ? error.message : String(error));
          }
        }
      });
      palette?.addItem({ command: `kernel-monitor:${name}`, category: CATEGORY });
    };

    commands.addCommand('kernel-monitor:show-sidebar', {
      label: 'Show the Kernel Monitor',
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => {
        sidebar.reveal();
      }
    });
    palette?.addItem({ command: 'kernel-monitor:show-sidebar', category: CATEGORY });
    add(
      'start',
      'Start Measuring This Kernel',
      source => source.canStart,
      source => source.start()
    );
    add('stop', 'Stop Measuring This Kernel', isRunning, source => source.stop());
    add('export', 'Export What Was Measured to an HTML File', hasSession, async source => {
      const { filename, html } = await source.exportPage();
      download(filename, html, 'text/html');
    });
  }
};

function isRunning(source: KernelSource): boolean {
  return source.connection.state === 'running' || source.connection.state === 'paused';
}

function hasSession(source: KernelSource): boolean {
  return source.session !== null;
}
