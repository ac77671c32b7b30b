/** The palette's commands; they act on the kernel that the sidebar shows. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { download, type ConnectionState, type KernelSource } from '@kernel-monitor/widgets';

import {
  BACKENDS,
  canDiagnose,
  canInspect,
  canProfile,
  canSwitch,
  diagnose,
  mark,
  profile,
  tune,
  switchLoader
} from './loader_commands.js';
import { chooseRecorded, openRecorded } from './replay.js';
import { IMonitorSettings } from './settings.js';
import { IMonitorSidebar } from './sidebar.js';

const CATEGORY = 'Kernel monitor';
const NO_ARGUMENTS = { args: { type: 'object', properties: {} } } as const;
/** The time for which a sidebar that was just opened may wait for its kernel's reply, in ms. */
const SETTLE_MS = 15_000;

interface Command {
  readonly label: string;
  readonly caption: string;
  readonly action: (source: KernelSource) => Promise<void> | void;
  /** Returns whether it can do something now; a kernel that was not asked yet counts as able. */
  readonly enabled?: (source: KernelSource) => boolean;
  readonly visible?: (source: KernelSource) => boolean;
}

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:commands',
  description:
    'Commands to show and steer the monitor, to export what it measured and to open recordings.',
  autoStart: true,
  requires: [IMonitorSidebar, IMonitorSettings],
  optional: [ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    sidebar: IMonitorSidebar,
    settings: IMonitorSettings,
    palette: ICommandPalette | null
  ) => {
    const { commands } = app;
    const add = (name: string, command: Command): void => {
      const { label, caption, action, enabled = () => true, visible = () => true } = command;
      commands.addCommand(`kernel-monitor:${name}`, {
        label,
        caption,
        describedBy: NO_ARGUMENTS,
        isEnabled: () => sidebar.source !== null && enabled(sidebar.source),
        isVisible: () => sidebar.source === null || visible(sidebar.source),
        execute: async () => {
          if (sidebar.source !== null) {
            await attempt(action, sidebar.source);
          }
        }
      });
      palette?.addItem({ command: `kernel-monitor:${name}`, category: CATEGORY });
    };

    commands.addCommand('kernel-monitor:show-sidebar', {
      label: 'Show the Kernel Monitor',
      caption: 'Open the sidebar that shows what the kernel of the active notebook does',
      describedBy: NO_ARGUMENTS,
      execute: () => {
        sidebar.reveal();
      }
    });
    palette?.addItem({ command: 'kernel-monitor:show-sidebar', category: CATEGORY });
    commands.addCommand('kernel-monitor:toggle-status-bar', {
      label: 'Show the Kernel in the Status Bar',
      caption: 'Show or hide the active notebook’s kernel at a glance',
      describedBy: NO_ARGUMENTS,
      isToggleable: true,
      isToggled: () => settings.statusBar,
      execute: () => settings.setStatusBar(!settings.statusBar)
    });
    palette?.addItem({ command: 'kernel-monitor:toggle-status-bar', category: CATEGORY });

    add('start', {
      label: 'Start Measuring This Kernel',
      caption: 'Load kernel_monitor where it is not, and start it',
      enabled: source => source.canStart || isIn(source, 'connecting'),
      action: source => source.start()
    });
    add('stop', {
      label: 'Stop Measuring This Kernel',
      caption: 'Stop the sampler; what was measured stays',
      enabled: source => isIn(source, 'running', 'paused', 'connecting'),
      action: source => source.stop()
    });
    add('export', {
      label: 'Export What Was Measured to an HTML File',
      caption: 'One file that shows the charts offline',
      enabled: source => source.session !== null || isIn(source, 'connecting'),
      action: async source => {
        const { filename, html } = await source.exportPage();
        download(filename, html, 'text/html');
      }
    });
    add('choose-charts', {
      label: 'Choose Charts and the Interval…',
      caption: 'Which charts this kernel’s monitor shows, and how often it measures',
      action: async source => {
        sidebar.reveal();
        const { text } = await settled(source);
        if (source.settings === null) {
          throw new Error(text);
        }
        sidebar.chooseCharts();
      }
    });
    add('open-recorded', {
      label: 'Open a Recorded Session…',
      caption: 'Show a session of this machine from its recording, in a tab of its own',
      action: async source => {
        const path = await chooseRecorded(source);
        const { kernel } = sidebar;
        if (path !== null && kernel !== null) {
          await openRecorded(app.shell, kernel, source, path);
        }
      }
    });
    add('tune', {
      label: 'Tune the Loader',
      caption: 'Find the fastest engine and knobs in the running loop, and go on with them',
      enabled: source => isIn(source, 'running', 'paused') && canDiagnose(source),
      action: source => {
        sidebar.reveal();
        return tune(source);
      }
    });
    add('diagnose', {
      label: 'Diagnose the Loader',
      caption: 'Measure each engine in the running loop, and say what bounds it',
      enabled: source => isIn(source, 'running', 'paused') && canDiagnose(source),
      action: source => {
        sidebar.reveal();
        return diagnose(source);
      }
    });
    add('profile', {
      label: 'Profile 10 Steps',
      caption: 'Which operators and kernels take the loop’s next steps',
      enabled: source => isIn(source, 'running', 'paused') && canProfile(source),
      action: source => {
        sidebar.reveal();
        return profile(source);
      }
    });
    add('mark', {
      label: 'Mark This Moment…',
      caption: 'Note what begins now: what follows is judged by itself',
      enabled: source => isIn(source, 'running', 'paused') && source.analysis !== null,
      action: mark
    });
    for (const backend of BACKENDS) {
      add(`switch-to-${backend}`, {
        label: `Switch Loader to ${backend}`,
        caption: `From the next batch, let ${backend} deliver`,
        visible: source => canSwitch(source, backend) !== null,
        enabled: source => canSwitch(source, backend) === true,
        action: source => switchLoader(source, backend)
      });
    }

    // The palette reads what is enabled and visible only when it is notified.
    let notified = '';
    let unlisten = (): void => undefined;
    const listen = (): void => {
      unlisten();
      const { source } = sidebar;
      const notify = (): void => {
        const now = [
          source?.connection.state,
          source && canInspect(source),
          source?.loaders.length,
          ...BACKENDS.map(backend => source && canSwitch(source, backend))
        ].join();
        if (now !== notified) {
          notified = now;
          commands.notifyCommandChanged();
        }
      };
      const stop = [source?.connectionChanged.on(notify), source?.changed.on(notify)];
      unlisten = () => stop.forEach(end => end?.());
      notify();
    };
    sidebar.changed.connect(listen);
    settings.changed.connect(() => {
      commands.notifyCommandChanged('kernel-monitor:toggle-status-bar');
    });
    listen();
  }
};

/** Run a command; what went wrong is shown. */
async function attempt(action: Command['action'], source: KernelSource): Promise<void> {
  try {
    await action(source);
  } catch (error) {
    Notification.error(error instanceof Error ? error.message : String(error));
  }
}

function isIn(source: KernelSource, ...states: ConnectionState[]): boolean {
  return states.includes(source.connection.state);
}

/** Wait until the source knows its kernel. */
async function settled(source: KernelSource): Promise<KernelSource['connection']> {
  if (isIn(source, 'connecting')) {
    await new Promise<void>(resolve => {
      const finish = (): void => {
        clearTimeout(limit);
        unlisten();
        resolve();
      };
      const limit = setTimeout(finish, SETTLE_MS);
      const unlisten = source.connectionChanged.on(({ state }) => {
        if (state !== 'connecting') {
          finish();
        }
      });
    });
  }
  return source.connection;
}
