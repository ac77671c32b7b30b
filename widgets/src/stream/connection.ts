/** The states of the connection to a kernel's monitor, and their sentences for the person. */

import { KernelError, KernelGone, NotLoaded, RequestTimeout } from './channel.js';
import { recordedText, type Recorded } from './sessions.js';
import { WireError, type Hello } from './page_messages.js';
import { PROTOCOL, VERSION } from './protocol.js';

export type ConnectionState =
  | 'connecting'
  | 'not-loaded'
  | 'stopped'
  | 'running'
  | 'paused'
  | 'dead'
  | 'incompatible'
  /** Not a kernel's monitor now, but a file that one left. */
  | 'recorded';

export interface Connection {
  readonly state: ConnectionState;
  /** One or two sentences. */
  readonly text: string;
  /** A line to copy that helps, if one does. */
  readonly remedy: string | null;
  /** The file in which a session that is gone was recorded. */
  readonly recorded: string | null;
}

function connection(
  state: ConnectionState,
  text: string,
  remedy: string | null = null
): Connection {
  return { state, text, remedy, recorded: null };
}

export const connecting = (text = 'Connecting to the kernel…'): Connection =>
  connection('connecting', text);

export const notLoaded = (): Connection =>
  connection(
    'not-loaded',
    'kernel_monitor is not loaded in this kernel.',
    '%load_ext kernel_monitor'
  );

export const stopped = (session: string | null): Connection =>
  connection(
    'stopped',
    session === null ? 'Not started.' : 'Stopped. The charts show what was measured until then.'
  );

export const running = (interval: number): Connection =>
  connection('running', `Measuring every ${String(Number(interval.toPrecision(3)))} s.`);

export const paused = (): Connection =>
  connection(
    'paused',
    'Paused: no cell ran for ten minutes, and an open page must not keep an idle kernel alive. ' +
      'It goes on with the next cell.'
  );

export const dead = (): Connection =>
  connection('dead', 'The kernel is dead. Restart it to measure again.');

/** A recording is shown. */
export const recorded = (entry: Recorded): Connection =>
  connection('recorded', recordedText(entry));

/** A recording could not be shown. */
export function unopened(error: unknown, path: string | null): Connection {
  const message = error instanceof Error ? error.message : String(error);
  const remedy = error instanceof NotLoaded ? notLoaded().remedy : null;
  const which = path === null ? 'The recorded session' : `The recorded session ${path}`;
  return connection('connecting', `${which} cannot be shown: ${message}`, remedy);
}

/** The end of a kernel's process, and the file in which its session was recorded. */
export interface ProcessEnd {
  /** Nobody requested it. */
  readonly died: boolean;
  readonly recorded: string | null;
}

/** A state with the end of the process that the page knew: that it died, and where its session was recorded. */
export function afterProcessEnd(end: ProcessEnd | null, now: Connection): Connection {
  if (end === null || !['dead', 'not-loaded', 'stopped'].includes(now.state)) {
    return now;
  }
  const again = end.died && now.state !== 'dead';
  const text = again ? `The kernel died and was started again. ${now.text}` : now.text;
  return { ...now, text, recorded: end.recorded };
}

/** The two halves speak different protocols: the older one must be updated. */
export function incompatible(hello: Hello): Connection {
  const kernelIsOlder = hello.protocol < PROTOCOL;
  const where = kernelIsOlder
    ? `in the kernel's environment “${hello.environment}”`
    : 'in the environment that runs JupyterLab';
  return connection(
    'incompatible',
    `This page is kernel-monitor ${VERSION} (protocol ${PROTOCOL}), the kernel has ${hello.version} ` +
      `(protocol ${hello.protocol}). Bring the older one up, ${where}:`,
    `pip install --upgrade kernel-monitor`
  );
}

/** The kernel's answer does not have the protocol's form. */
const unreadable = (message: string): Connection =>
  connection(
    'incompatible',
    `This page (kernel-monitor ${VERSION}) and the kernel's kernel-monitor do not understand each other: ${message}`,
    'pip install --upgrade kernel-monitor'
  );

/** The state that a failed request leaves. */
export function explain(error: unknown, kernelStatus: string): Connection {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof NotLoaded) {
    return notLoaded();
  }
  const misunderstood = error instanceof KernelError && error.name === 'BadRequest';
  if (error instanceof WireError || misunderstood) {
    return unreadable(message);
  }
  if (kernelStatus === 'dead') {
    return dead();
  }
  const passing = error instanceof RequestTimeout || error instanceof KernelGone;
  return connecting(passing ? `${message} Trying again.` : message);
}

/** When the kernel or the connection to it goes away: what the page says, and what pending requests fail with. */
export const LOST = {
  dead: [dead(), 'The kernel is dead.'],
  died: [connecting('The kernel died and is started again…'), 'The kernel died.'],
  restarting: [connecting('The kernel restarts…'), 'The kernel restarts.'],
  disconnected: [
    connecting('The connection to the kernel is interrupted; waiting for it to come back.'),
    'The connection to the kernel is interrupted.'
  ]
} as const;
