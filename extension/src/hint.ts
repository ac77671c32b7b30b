/** One line under the dashboard of a cell, while the sidebar is closed: the sidebar shows the same dashboard. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { onCellDashboard } from '@kernel-monitor/widgets';

import { IMonitorSidebar } from './sidebar.js';

export const hintPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:hint',
  description: 'Says under the dashboard of a cell that the sidebar shows the same.',
  autoStart: true,
  requires: [IMonitorSidebar],
  activate: (_: JupyterFrontEnd, sidebar: IMonitorSidebar) => {
    onCellDashboard(el => {
      el.append(hint(sidebar));
    });
  }
};

function hint(sidebar: IMonitorSidebar): HTMLElement {
  const line = document.createElement('p');
  const button = document.createElement('button');
  const name = document.createElement('em');
  const command = document.createElement('code');
  line.className = 'km-hint';
  button.type = 'button';
  button.textContent = 'sidebar';
  button.addEventListener('click', () => {
    sidebar.reveal();
  });
  name.textContent = 'Kernel monitor';
  command.textContent = '%monitor sidebar';
  line.append(
    'The same is in the ',
    button,
    ': the ',
    name,
    ' tab at the right, or ',
    command,
    '.'
  );
  return line;
}
