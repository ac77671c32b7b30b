/** Give a kernel the settings that the person made: once to each kernel process, and whenever they change. */

import { Notification } from '@jupyterlab/apputils';
import type { Changes, KernelSource, Settings } from '@kernel-monitor/widgets';
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

  /** The kernel's monitor is there: has this process been told? */
  private meet(): void {
    const { connection, session } = this.source;
    const { state } = connection;
    if (state === 'not-loaded' || state === 'dead') {
      this._told = false;
    }
    if (state !== 'running' && state !== 'paused' && state !== 'stopped') {
      return;
    }
    const known = stored();
    const isKnown = session !== null && known.includes(session);
    if (session !== null && !isKnown) {
      sessionStorage.setItem(STORED, JSON.stringify([...known.slice(-50), session]));
    }
    if (!this._told && !isKnown) {
      this._told = true;
      void this.tell(this.settings.user);
    }
  }

  private change(_: unknown, changes: Changes): void {
    const { state } = this.source.connection;
    if (state === 'running' || state === 'paused' || state === 'stopped') {
      void this.tell(changes);
    }
  }

  private async tell(wanted: Changes): Promise<void> {
    const now = this.source.settings;
    if (now === null) {
      return; // A kernel whose half is too old to have settings.
    }
    const keys = Object.keys(wanted) as (keyof Changes)[];
    const where = now.record && (now.record_to ?? '');
    const has = { ...now, record: typeof wanted.record === 'string' ? where : now.record };
    const differing = keys.filter(key =>
      key === 'price'
        ? !isPrice(String(wanted.price), now)
        : JSON.stringify(wanted[key]) !== JSON.stringify(has[key])
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

  private _told = false;
  private _isDisposed = false;
  private readonly _unlisten: () => void;
}

/** Whether the kernel has this price; one that is too old to know prices is not told. */
function isPrice(wanted: string, { price, currency }: Settings): boolean {
  if (price === undefined) {
    return true;
  }
  if (wanted.trim() === '') {
    return price === null;
  }
  const number = Number(/[\d.,]+/.exec(wanted)?.[0].replace(',', '.'));
  const said = wanted.replace(/[\d.,+\s]/g, '').replace(/(\/|per)(h|hr|hour)$/, '');
  return number === price && (said === '' || said === currency);
}

function stored(): string[] {
  return JSON.parse(sessionStorage.getItem(STORED) ?? '[]') as string[];
}
