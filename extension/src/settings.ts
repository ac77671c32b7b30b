/** The settings that a person made in JupyterLab's settings editor (schema/plugin.json), and how kernels get them. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { Changes, KernelSource } from '@kernel-monitor/widgets';
import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

const SETTINGS_ID = 'kernel-monitor:plugin';

export interface IMonitorSettings {
  /** The person's settings for a kernel's monitor; the notebook decides on the others. */
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

/** Sessions that got them, kept over a reload of the page: what was chosen on the page since then stays chosen. */
const STORED = 'kernel-monitor:configured';

/** Sends a kernel the settings: once to each kernel process, and whenever they change. */
export class SettingsApplier implements IDisposable {
  constructor(
    private readonly source: KernelSource,
    private readonly settings: IMonitorSettings
  ) {
    this._unlisten = source.connectionChanged.on(() => {
      this.sendOnce();
    });
    settings.changed.connect(this.change, this);
    this.sendOnce();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._unlisten();
      this.settings.changed.disconnect(this.change, this);
    }
  }

  /** Send the settings if the kernel's monitor is there and its process does not have them. */
  private sendOnce(): void {
    const { connection, session } = this.source;
    const { state } = connection;
    if (state === 'not-loaded' || state === 'dead') {
      this._isSent = false;
    }
    if (state !== 'running' && state !== 'paused' && state !== 'stopped') {
      return;
    }
    const known = stored();
    const isKnown = session !== null && known.includes(session);
    if (session !== null && !isKnown) {
      sessionStorage.setItem(STORED, JSON.stringify([...known.slice(-50), session]));
    }
    if (!this._isSent && !isKnown) {
      this._isSent = true;
      void this.send(this.settings.user);
    }
  }

  private change(_: unknown, changes: Changes): void {
    const { state } = this.source.connection;
    if (state === 'running' || state === 'paused' || state === 'stopped') {
      void this.send(changes);
    }
  }

  private async send(wanted: Changes): Promise<void> {
    const now = this.source.settings;
    if (now === null) {
      return; // Not subscribed yet.
    }
    const keys = Object.keys(wanted) as (keyof Changes)[];
    const where = now.record && (now.record_to ?? '');
    const has = { ...now, record: typeof wanted.record === 'string' ? where : now.record };
    // Only the kernel parses a price, and ignores the one it has.
    const differing = keys.filter(
      key => key === 'price' || JSON.stringify(wanted[key]) !== JSON.stringify(has[key])
    );
    if (differing.length === 0) {
      return;
    }
    try {
      await this.source.configure(Object.fromEntries(differing.map(key => [key, wanted[key]])));
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      Notification.error(`The kernel did not take the settings: ${reason}`);
    }
  }

  private _isSent = false;
  private _isDisposed = false;
  private readonly _unlisten: () => void;
}

function stored(): string[] {
  return JSON.parse(sessionStorage.getItem(STORED) ?? '[]') as string[];
}
