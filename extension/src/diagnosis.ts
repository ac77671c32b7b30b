/** Diagnose a loader, profile its loop and mark a moment from the palette. */

import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';
import type { KernelSource, LoaderState } from '@kernel-monitor/widgets';

import { chooseLoader, live } from './loader_switch.js';

const PROFILED_STEPS = 10;

/** Whether the kernel's package has these commands, and none of them runs. */
export function canInspect(source: KernelSource): boolean {
  const { analysis } = source;
  return (
    analysis !== null &&
    analysis.diagnosing?.state !== 'running' &&
    analysis.profiling?.state !== 'running'
  );
}

/** Whether a loader has engines to measure. */
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
