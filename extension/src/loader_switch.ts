/** Switch a loader from the palette. */

import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { KernelSource, LoaderState } from '@kernel-monitor/widgets';

/** Every backend there is (kernel_monitor/loaders/engines/backends.py). */
export const BACKENDS = ['torchvision', 'dali-cpu', 'dali-gpu', 'synthetic', 'ray'] as const;

/** @returns null where no loader has the backend, else whether one could switch to it now */
export function canSwitch(source: KernelSource, backend: string): boolean | null {
  const having = live(source).filter(loader => find(loader, backend) !== undefined);
  if (having.length === 0) {
    return null;
  }
  return having.some(
    loader => find(loader, backend)!.available && (loader.wanted ?? loader.backend) !== backend
  );
}

/** Ask which loader where there are several, ask for confirmation where the backend wants one, and switch. */
export async function switchLoader(source: KernelSource, backend: string): Promise<void> {
  const loaders = live(source).filter(loader => find(loader, backend)?.available);
  const loader = await chooseLoader(loaders, `Switch to ${backend}`, 'Switch');
  if (loader === null) {
    return;
  }
  const confirm = find(loader, backend)!.confirm;
  if (confirm !== null) {
    const { button } = await showDialog({
      title: `Switch to ${backend}?`,
      body: confirm,
      buttons: [
        Dialog.cancelButton(),
        Dialog.okButton({ label: backend === 'synthetic' ? 'Replay' : 'Start' })
      ],
      defaultButton: 0
    });
    if (!button.accept) {
      return;
    }
  }
  await source.switchTo(loader.id, backend, confirm !== null);
}

/** Ask which loader is meant, where there are several; null where there is none, or none was chosen. */
export async function chooseLoader(
  loaders: readonly LoaderState[],
  title: string,
  okLabel: string
): Promise<LoaderState | null> {
  if (loaders.length <= 1) {
    return loaders[0] ?? null;
  }
  // Two loaders may have one name.
  const items = loaders.map((loader, i) =>
    loaders.some((other, k) => k !== i && other.name === loader.name)
      ? `${loader.name} (${loader.id})`
      : loader.name
  );
  const { button, value } = await InputDialog.getItem({
    title,
    label: 'Loader:',
    items,
    okLabel
  });
  return button.accept && value !== null ? (loaders[items.indexOf(value)] ?? null) : null;
}

export function live(source: KernelSource): readonly LoaderState[] {
  return source.loaders.filter(loader => loader.ended !== true);
}

function find(loader: LoaderState, backend: string): LoaderState['backends'][number] | undefined {
  return loader.backends.find(({ name }) => name === backend);
}
