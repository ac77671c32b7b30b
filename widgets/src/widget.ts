/** The anywidget entry: the dashboard in the output of a cell (its Python half: kernel_monitor/widgets.py). */

import type { KernelLike, SignalLike } from './stream/channel.js';
import { announceCellDashboard, mountDashboard } from './page/dashboard.js';
import { element } from './page/dom.js';
import { followSurface, FrontEndLine, isVsCode } from './page/front_end.js';
import { KernelSource } from './stream/kernel_source.js';
import { RecordedSource } from './stream/recorded_source.js';
import { WidgetKernel, type WidgetModel } from './stream/widget_kernel.js';

interface SessionContextLike {
  readonly session: { readonly kernel: KernelLike | null } | null;
  readonly kernelChanged: SignalLike<unknown>;
}

/** The part of JupyterLab's and Notebook's widget manager that others may lack. */
interface ManagerLike {
  readonly kernel?: KernelLike | null;
  readonly context?: { readonly sessionContext?: SessionContextLike };
}

interface Context {
  readonly model: WidgetModel & {
    readonly widget_manager?: ManagerLike;
    get?(name: 'recorded'): unknown;
  };
  readonly el: HTMLElement;
}

function render({ model, el }: Context): () => void {
  const manager = model.widget_manager;
  const session = manager?.context?.sessionContext;
  const named = model.get?.('recorded');
  const recorded = typeof named === 'string' && named !== '' ? named : null;
  const host = element('div');
  el.append(host);
  let unmount = (): void => undefined;
  let mounted: KernelLike | null = null;

  const mount = (): void => {
    const kernel = session ? (session.session?.kernel ?? null) : (manager?.kernel ?? null);
    if (kernel === mounted && host.hasChildNodes()) {
      return;
    }
    unmount();
    mounted = kernel;
    if (session !== undefined && kernel === null) {
      host.replaceChildren(element('p', 'km-dashboard km-nothing', NO_KERNEL));
      unmount = () => undefined;
      return;
    }
    const controlled = typeof kernel?.sendControlMessage === 'function' && !isVsCode();
    const widget = controlled ? null : new WidgetKernel(model);
    const reached = widget ?? kernel!;
    const line = widget === null ? null : new FrontEndLine(widget);
    const source =
      recorded !== null
        ? new RecordedSource(reached, { id: recorded })
        : new KernelSource(reached, { loaded: true }); // its package made this widget
    if (line !== null) {
      host.after(line.el);
    }
    const unfollow = line === null ? null : followSurface(host, line.el);
    const dashboard = mountDashboard(host, source);
    unmount = () => {
      unfollow?.();
      dashboard.dispose();
      source.dispose();
      line?.dispose();
      line?.el.remove();
      widget?.dispose();
    };
  };

  mount();
  if (recorded === null) {
    announceCellDashboard(el);
  }
  session?.kernelChanged.connect(mount);
  return () => {
    session?.kernelChanged.disconnect(mount);
    unmount();
    host.remove();
  };
}

const NO_KERNEL =
  'This notebook has no kernel now. When it has one again, %monitor shows the dashboard.';

export default { render };
