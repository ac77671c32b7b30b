/** The palette's commands for a loader: switch its engine, diagnose it, profile its loop, mark a moment. */

import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { KernelSource, LoaderState } from '@kernel-monitor/widgets';

/** Every backend there is (kernel_monitor/loaders/engines/backends.py). */
export const BACKENDS = [
  'torchvision',
  'dali-cpu',
  'dali-gpu',
  'threads',
  'synthetic',
  'ray'
] as const;

const PROFILED_STEPS = 10;

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

/** Return whether the kernel's package has these commands, and none of them runs. */
export function canInspect(source: KernelSource): boolean {
  const { analysis } = source;
  return (
    analysis !== null &&
    analysis.diagnosing?.state !== 'running' &&
    analysis.profiling?.state !== 'running'
  );
}

/** Return whether a loader has engines to measure. */
export function canDiagnose(source: KernelSource): boolean {
  return canInspect(source) && diagnosable(source).length > 0;
}

export function canProfile(source: KernelSource): boolean {
  return canInspect(source) && live(source).length > 0;
}

/** Ask whether batches may be replayed, too, and measure each engine in the running loop. */
export async function diagnose(source: KernelSource): Promise<void> {
  const loader = await chooseLoader(diagnosable(source), 'Diagnose the Loader', 'Diagnose');
  if (loader === null) {
    return;
  }
  const replay = loader.backends.find(({ name, available }) => name === 'synthetic' && available);
  const { button, isChecked } = await showDialog({
    title: `Diagnose ${loader.name}?`,
    body:
      'Each engine that can run here delivers to the running loop for a few seconds; ' +
      `then ${loader.wanted ?? loader.backend} goes on.`,
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: 'Diagnose' })],
    defaultButton: 0,
    checkbox: replay
      ? {
          label: 'Also replay batches (synthetic), for the ceiling',
          caption: replay.confirm ?? '',
          checked: false
        }
      : null
  });
  if (button.accept) {
    await source.diagnose(loader.id, isChecked === true);
  }
}

/** Tune a loader; the question is the button's. */
export async function tune(source: KernelSource): Promise<void> {
  const loader = await chooseLoader(diagnosable(source), 'Tune the Loader', 'Tune');
  if (loader !== null) {
    await source.tune(loader.id);
  }
}

export async function profile(source: KernelSource): Promise<void> {
  const loader = await chooseLoader(live(source), 'Profile 10 Steps', 'Profile');
  if (loader !== null) {
    await source.profile(loader.id, PROFILED_STEPS);
  }
}

export async function mark(source: KernelSource): Promise<void> {
  const { button, value } = await InputDialog.getText({
    title: 'Mark This Moment',
    label: 'What begins now:',
    placeholder: 'augment x12',
    okLabel: 'Set the mark'
  });
  const label = value?.trim() ?? '';
  if (button.accept && label !== '') {
    await source.mark(label);
  }
}

function diagnosable(source: KernelSource): readonly LoaderState[] {
  return live(source).filter(({ backends }) => backends.some(({ available }) => available));
}

/** Ask which loader is meant, where there are several; null where there is none, or none was chosen. */
async function chooseLoader(
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

function live(source: KernelSource): readonly LoaderState[] {
  return source.loaders.filter(loader => loader.ended !== true);
}

function find(loader: LoaderState, backend: string): LoaderState['backends'][number] | undefined {
  return loader.backends.find(({ name }) => name === backend);
}
