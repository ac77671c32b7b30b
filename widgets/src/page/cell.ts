/** An event for each dashboard in the output of a cell: a page with a sidebar adds a line under it. */

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
