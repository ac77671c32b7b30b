/** The status bar's item: the active notebook's kernel at a glance; a click opens the sidebar. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { glanceParts, GlanceSource, recordingText } from '@kernel-monitor/widgets';
import { type ISignal, Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { IMonitorSettings } from './settings.js';
import { IMonitorSidebar } from './sidebar.js';

export const statusBarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'kernel-monitor:statusbar',
  description: "Shows the active notebook's kernel at a glance.",
  autoStart: true,
  requires: [IMonitorSidebar, IMonitorSettings],
  optional: [IStatusBar],
  activate: (
    _: JupyterFrontEnd,
    sidebar: IMonitorSidebar,
    settings: IMonitorSettings,
    statusBar: IStatusBar | null
  ) => {
    if (statusBar === null) {
      return;
    }
    const item = new GlanceItem(sidebar, settings);
    statusBar.registerStatusItem('kernel-monitor:glance', {
      item,
      align: 'left',
      rank: 10,
      isActive: () => item.isShown,
      activeStateChanged: item.shownChanged
    });
  }
};

class GlanceItem extends Widget {
  constructor(
    private readonly sidebar: IMonitorSidebar,
    private readonly settings: IMonitorSettings
  ) {
    super();
    this.addClass('km-glance');
    this._button.type = 'button';
    this._button.addEventListener('click', () => {
      sidebar.reveal();
    });
    this.node.append(this._button);
    sidebar.changed.connect(this.follow, this);
    settings.changed.connect(this.updateVisibility, this);
    document.addEventListener('visibilitychange', this.updateVisibility);
    this.follow();
  }

  /** True if there is something to show. */
  get isShown(): boolean {
    return this._isShown;
  }

  get shownChanged(): ISignal<this, void> {
    return this._shownChanged;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      document.removeEventListener('visibilitychange', this.updateVisibility);
      this._source?.dispose();
      Signal.clearData(this);
      super.dispose();
    }
  }

  /** The sidebar shows another kernel, or none. */
  private follow(): void {
    const { kernel } = this.sidebar;
    if (kernel !== this._kernel) {
      this._source?.dispose();
      this._source = kernel === null ? null : new GlanceSource(kernel);
      this._source?.changed.on(() => {
        this.display();
      });
      this._kernel = kernel;
    }
    this.updateVisibility();
    this.display();
  }

  private readonly updateVisibility = (): void => {
    this._source?.setVisible(this.settings.statusBar && !document.hidden);
    this.display();
  };

  private display(): void {
    const { state, glance } = this._source ?? { state: 'none', glance: null };
    const parts = glance === null ? [] : glanceParts(glance);
    const isPaused = state === 'paused';
    const text = isPaused ? 'monitor paused' : parts.map(part => part.text).join(' · ');
    const shown = this.settings.statusBar && text !== '';
    if (shown) {
      const lines = isPaused
        ? ['The monitor is paused: no cell ran for ten minutes. It goes on with the next cell.']
        : parts.map(part => part.meaning);
      if (glance?.recording.state === 'stopped') {
        lines.push(recordingText(glance.recording));
      }
      const title = [
        `The kernel of ${this.sidebar.notebook}`,
        ...this.machine(),
        ...lines,
        'Click for the kernel monitor.'
      ].join('\n');
      set(this._button, 'textContent', text);
      set(this._button, 'title', title);
      const label = `Kernel monitor: ${lines.join(', ')}`;
      if (this._button.getAttribute('aria-label') !== label) {
        this._button.setAttribute('aria-label', label);
      }
    }
    if (shown !== this._isShown) {
      this._isShown = shown;
      this._shownChanged.emit();
    }
  }

  /** The machine, where the sidebar knows it. */
  private machine(): string[] {
    const host = this.sidebar.source?.schema?.host;
    return host?.cpu_model ? [`${host.cpu_model}, ${String(host.logical_cpus)} logical cores`] : [];
  }

  private _kernel: IMonitorSidebar['kernel'] = null;
  private _source: GlanceSource | null = null;
  private _isShown = false;
  private readonly _button = document.createElement('button');
  private readonly _shownChanged = new Signal<this, void>(this);
}

function set(el: HTMLElement, property: 'textContent' | 'title', value: string): void {
  if (el[property] !== value) {
    el[property] = value;
  }
}
