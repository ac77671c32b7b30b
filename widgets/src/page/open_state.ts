/** The details that a person has opened, remembered over a rebuilt cell and a reloaded page. */

const STORED = 'kernel-monitor:open';

/** Restore whether it is open, by this name, and store every change. */
export function remember(details: HTMLDetailsElement, name: string): void {
  details.open = wasOpen(name);
  details.addEventListener('toggle', () => note(name, details.open));
}

export function wasOpen(name: string): boolean {
  return stored().includes(name);
}

export function note(name: string, open: boolean): void {
  const others = stored().filter(other => other !== name);
  store(open ? [...others, name] : others);
}

function stored(): readonly string[] {
  try {
    const names: unknown = JSON.parse(localStorage.getItem(STORED) ?? '[]');
    return Array.isArray(names) ? names.map(String) : [];
  } catch (error) {
    // A sandboxed page has no storage: everything begins closed.
    console.debug('kernel_monitor: the stored open state cannot be read.', error);
    return [];
  }
}

function store(names: readonly string[]): void {
  try {
    localStorage.setItem(STORED, JSON.stringify(names));
  } catch (error) {
    console.debug('kernel_monitor: the open state cannot be stored.', error);
  }
}
