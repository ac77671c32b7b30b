/** The settings that a person made in JupyterLab's settings editor (schema/plugin.json). */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { Changes } from '@kernel-monitor/widgets';
import { Token } from '@lumino/coreutils';
import { type ISignal, Signal } from '@lumino/signaling';

export const SETTINGS_ID = 'kernel-monitor:plugin';

export interface IMonitorSettings {
  /** What the person set, for a kernel's monitor; the notebook decides what is not set. */
  readonly user: Changes;
  readonly statusBar: boolean;
  /** Emits the settings to send to a kernel: what was set, and the defaults of what was reset. */
  readonly changed: ISignal<unknown, Changes>;
  setStatusBar(shown: boolean): Promise<void>;
}

export const IMonitorSettings = new Token<IMonitorSettings>(
  'kernel-monitor:IMonitorSettings',
  'What a person set for the kernel monitor.'
);

class MonitorSettings implements IMonitorSettings {
  user: Changes = {};
  statusBar = true;

  get changed(): ISignal<this, Changes> {
    return this._changed;
  }

  take(settings: ISettingRegistry.ISettings): void {
    this._settings = settings;
    const before = this.user;
    this.user = changes(settings.user);
    this.statusBar = settings.composite.statusBar !== false;
    const defaults = changes(settings.composite);
    const reset = Object.keys(before).filter(key => !(key in this.user)) as (keyof Changes)[];
    const back = Object.fromEntries(reset.map(key => [key, defaults[key]])) as Changes;
    this._changed.emit({ ...back, ...this.user });
  }

  async setStatusBar(shown: boolean): Promise<void> {
    if (this._settings === null) {
      this.statusBar = shown;
      this._changed.emit({});
    } else {
      await this._settings.set('statusBar', shown);
    }
  }

  private _settings: ISettingRegistry.ISettings | null = null;
  private readonly _changed = new Signal<this, Changes>(this);
}

/** *Recording* and its folder are what a kernel calls `record`: false, or where to (empty: the usual folder). */
function changes(values: Readonly<Record<string, unknown>>): Changes {
  const { interval, history, charts, recording, recordingFolder, price } = values;
  const record = recording === false ? false : (recordingFolder ?? recording);
  return {
    ...(typeof interval === 'number' ? { interval } : {}),
    ...(typeof history === 'number' ? { history } : {}),
    ...(Array.isArray(charts) ? { charts: charts as string[] } : {}),
    ...(typeof record === 'boolean' || typeof record === 'string' ? { record } : {}),
    ...(typeof price === 'string' ? { price } : {})
  };
}

export const settingsPlugin: JupyterFrontEndPlugin<IMonitorSettings> = {
  id: SETTINGS_ID,
  description: 'The settings of the kernel monitor.',
  autoStart: true,
  provides: IMonitorSettings,
  optional: [ISettingRegistry],
  activate: (app: JupyterFrontEnd, registry: ISettingRegistry | null): IMonitorSettings => {
    const made = new MonitorSettings();
    // While the page loads, the server has enough to answer: nothing of ours is on the screen before.
    void app.restored
      .then(async () => {
        const settings = await registry?.load(SETTINGS_ID);
        if (settings !== undefined) {
          made.take(settings);
          settings.changed.connect(() => {
            made.take(settings);
          });
        }
      })
      .catch((error: unknown) => {
        const reason = error instanceof Error ? error.message : String(error);
        Notification.warning(`The kernel monitor's settings could not be read: ${reason}`);
      });
    return made;
  }
};
