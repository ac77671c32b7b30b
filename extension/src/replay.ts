/** Recorded sessions: the list to choose from, and the tab that shows one. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, InputDialog, MainAreaWidget, showDialog } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import {
  entryText,
  mountDashboard,
  RecordedSource,
  type KernelSource,
  type SessionEntry
} from '@kernel-monitor/widgets';
import { Widget } from '@lumino/widgets';

import { monitorIcon } from './icon.js';

/** Let the person choose a recorded session; null when nothing is chosen. */
export async function chooseRecorded(source: KernelSource): Promise<string | null> {
  await source.ensureLoaded();
  const entries = await source.sessions();
  if (entries.length === 0) {
    await showDialog({
      title: 'No recorded sessions',
      body: 'The machine of this kernel has no recorded session. One is recorded while a monitor runs.',
      buttons: [Dialog.okButton()]
    });
    return null;
  }
  const labels = entries.map(label);
  const { button, value } = await InputDialog.getItem({
    title: 'Open a recorded session',
    label: 'Newest first:',
    items: labels,
    okLabel: 'Open'
  });
  return button.accept && value !== null ? (entries[labels.indexOf(value)]?.path ?? null) : null;
}

/** No two alike: two sessions may have begun in the same minute. */
function label(entry: SessionEntry, i: number, all: readonly SessionEntry[]): string {
  const text = entry.problem
    ? `${entry.damaged ? 'damaged' : 'cannot be read'}: ${entry.problem}`
    : entryText(entry);
  const twin = all.some((other, k) => k !== i && !other.problem && entryText(other) === text);
  return twin || entry.problem ? `${text} · ${entry.path.split(/[\\/]/).pop()!}` : text;
}

/**
 * Show a recorded session in a tab of its own.
 *
 * @param kernel - reads the file; the tab has a connection of its own to it, and outlives the notebook
 */
export async function openRecorded(
  shell: JupyterFrontEnd.IShell,
  kernel: Kernel.IKernelConnection,
  source: KernelSource,
  path: string
): Promise<void> {
  await source.ensureLoaded();
  const content = new RecordedView(kernel.clone(), path);
  const widget = new MainAreaWidget({ content });
  widget.toolbar.hide();
  shell.add(widget, 'main', { type: 'Kernel monitor' });
  if (!widget.isAttached) {
    // A shell with one document to a page.
    shell.add(widget, 'down', { type: 'Kernel monitor' });
  }
  shell.activateById(widget.id);
  source.refresh();
}

class RecordedView extends Widget {
  constructor(
    private readonly kernel: Kernel.IKernelConnection,
    path: string
  ) {
    super();
    const name = path.split(/[\\/]/).pop()!;
    this.addClass('km-recorded');
    this.title.label = name;
    this.title.caption = `Recorded session ${path}`;
    this.title.icon = monitorIcon;
    this.title.closable = true;
    const body = document.createElement('div');
    this.node.append(body);
    this._source = new RecordedSource(kernel, { path });
    this._view = mountDashboard(body, this._source);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._view.dispose();
      this._source.dispose();
      this.kernel.dispose();
      super.dispose();
    }
  }

  private readonly _source: RecordedSource;
  private readonly _view: { dispose(): void };
}
