/** The anywidget entry: the dashboard in the output of a cell (its Python half: kernel_monitor/widgets.py). */

import type { KernelLike, SignalLike } from './stream/channel.js';
import { announceCellDashboard, mountDashboard } from './page/dashboard.js';
import { element } from './page/dom.js';
import { KernelSource } from './stream/kernel_source.js';
import { RecordedSource } from './stream/recorded_source.js';

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
  readonly model: {
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
    if (typeof kernel?.sendControlMessage !== 'function') {
      host.replaceChildren(nothing(session !== undefined));
      unmount = () => undefined;
      return;
    }
    const source =
      recorded !== null
        ? new RecordedSource(kernel, { id: recorded })
        : new KernelSource(kernel, { loaded: true }); // its package made this widget
    const dashboard = mountDashboard(host, source);
    unmount = () => {
      dashboard.dispose();
      source.dispose();
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

/** The sentence for a widget without a kernel connection: what cannot be done here, and what can. */
function nothing(hasSession: boolean): HTMLElement {
  const text = hasSession
    ? 'This notebook has no kernel now. When it has one again, %monitor shows the dashboard.'
    : 'This front end gives a widget no connection to its kernel, so that the live charts and the loader switch ' +
      'cannot work here. They do in JupyterLab and Jupyter Notebook. Here, use %monitor status, ' +
      '%monitor switch NAME and %monitor export run.html in a cell.';
  return element('p', 'km-dashboard km-nothing', text);
}

export default { render };
