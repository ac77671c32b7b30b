/**
 * JupyterLab takes every status message for the running cell's: a control request answered in the middle of a cell
 * would show *Idle*. The page option `untracked_message_types`, read at each status message, exempts a type.
 */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { PageConfig } from '@jupyterlab/coreutils';
import { REQUEST } from '@kernel-monitor/widgets';

const OPTION = 'untracked_message_types';

function untracked(): string[] {
  return JSON.parse(PageConfig.getOption(OPTION) || '[]') as string[];
}

/**
 * Exempt message types from the kernel's displayed status.
 *
 * @returns A function that takes back what this call added.
 */
export function untrack(...types: string[]): () => void {
  const added = types.filter(type => !untracked().includes(type));
  PageConfig.setOption(OPTION, JSON.stringify([...untracked(), ...added]));
  return () => {
    PageConfig.setOption(OPTION, JSON.stringify(untracked().filter(type => !added.includes(type))));
  };
}

export const untrackedPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:untracked',
  description: 'Keeps the kernel status at Busy while control requests are answered.',
  autoStart: true,
  activate: () => {
    // Any widget makes JupyterLab ask for a subshell, whose *Idle* comes after the next cell's *Busy*.
    untrack(REQUEST, 'create_subshell_request', 'delete_subshell_request');
  }
};
