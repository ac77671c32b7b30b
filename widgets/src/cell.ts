/** A dashboard in the output of a cell tells its page that it is there: a page with a sidebar says so under it. */

const SHOWN = 'kernel-monitor:cell-dashboard';

/** @param el - holds the dashboard, and what the page adds to it */
export function announceCellDashboard(el: HTMLElement): void {
  document.dispatchEvent(new CustomEvent(SHOWN, { detail: el }));
}

export function onCellDashboard(listener: (el: HTMLElement) => void): void {
  document.addEventListener(SHOWN, event => {
    listener((event as CustomEvent<HTMLElement>).detail);
  });
}
