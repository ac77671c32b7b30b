/** Send a kernel the settings that the person made: once to each kernel process, and whenever they change. */

import { Notification } from '@jupyterlab/apputils';
import type { Changes, KernelSource } from '@kernel-monitor/widgets';
import type { IDisposable } from '@lumino/disposable';

import type { IMonitorSettings } from './settings.js';

/** Sessions that got them, kept over a reload of the page: what was chosen on the page since then stays chosen. */
const STORED = 'kernel-monitor:configured';

export class SettingsApplier implements IDisposable {
  constructor(
    private readonly source: KernelSource,
    private readonly settings: IMonitorSettings
  ) {
    this._unlisten = source.connectionChanged.on(() => {
      this.meet();
    });
    settings.changed.connect(this.change, this);
    this.meet();
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

  /** The kernel's monitor is there: send the settings unless this process has them. */
  private meet(): void {
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
