/** What a person has open: kept over a rebuilt cell and a reloaded page. */

const STORED = 'kernel-monitor:open';

/** Open it if it was open when it was last seen under this name, and note what becomes of it. */
export function remember(details: HTMLDetailsElement, name: string): void {
  details.open = wasOpen(name);
  details.addEventListener('toggle', () => note(name, details.open));
}

export function wasOpen(name: string): boolean {
  return stored().includes(name);
}

export function note(name: string, open: boolean): void {
  const others = stored().filter(one => one !== name);
  store(open ? [...others, name] : others);
}

function stored(): readonly string[] {
  try {
    const names: unknown = JSON.parse(localStorage.getItem(STORED) ?? '[]');
    return Array.isArray(names) ? names.map(String) : [];
  } catch (error) {
    // A sandboxed page has no storage: then everything begins closed.
    console.debug('kernel_monitor: what was open is not known.', error);
    return [];
  }
}

function store(names: readonly string[]): void {
  try {
    localStorage.setItem(STORED, JSON.stringify(names));
  } catch (error) {
    console.debug('kernel_monitor: what is open is not kept.', error);
  }
}
