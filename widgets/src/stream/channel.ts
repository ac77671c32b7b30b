/**
 * Requests over a kernel's control channel, which answers while a cell runs.
 *
 * `KernelLike` is the part of JupyterLab's `Kernel.IKernelConnection` that is used, spelled out so that the widget's
 * bundle needs nothing of JupyterLab at run time.
 */

import type { Buffer } from './message_check.js';
import { PROTOCOL, REQUEST, TARGET } from './protocol.js';

/** A Lumino signal. */
export interface SignalLike<A> {
  connect(slot: (sender: unknown, args: A) => void): boolean;
  disconnect(slot: (sender: unknown, args: A) => void): boolean;
}

export interface MessageLike {
  header: { msg_id: string; msg_type: string; session: string };
  parent_header: { msg_id?: string; msg_type?: string };
  content: unknown;
  buffers?: Buffer[];
}

export interface FutureLike {
  onReply: (message: never) => void | PromiseLike<void>;
  onIOPub: (message: never) => void | PromiseLike<void>;
  readonly done: Promise<unknown>;
  dispose(): void;
}

export interface KernelLike {
  readonly id: string;
  readonly clientId: string;
  readonly username: string;
  readonly status: string;
  readonly connectionStatus: string;
  readonly isDisposed: boolean;
  readonly iopubMessage: SignalLike<MessageLike>;
  readonly statusChanged: SignalLike<string>;
  readonly connectionStatusChanged: SignalLike<string>;
  sendControlMessage(message: never, expectReply?: boolean, disposeOnDone?: boolean): FutureLike;
}

/** The package is not loaded in the kernel. */
export class NotLoaded extends Error {
  override name = 'NotLoaded';
}

/** No answer came in time. */
export class RequestTimeout extends Error {
  override name = 'RequestTimeout';
}

/** The kernel or the connection to it went away before the answer came. */
export class KernelGone extends Error {
  override name = 'KernelGone';
}

/** The kernel answered with an error; `name` is the Python exception's. */
export class KernelError extends Error {
  constructor(
    name: string,
    message: string,
    readonly content: Readonly<Record<string, unknown>>
  ) {
    super(message);
    this.name = name;
  }
}

export interface Reply {
  readonly content: Readonly<Record<string, unknown>>;
  readonly buffers: readonly Buffer[];
}

export interface RequestOptions {
  /** Milliseconds until `RequestTimeout`. */
  timeout?: number;
  /** The answer may come after the kernel's idle: so idle does not mean that no answer comes. */
  later?: boolean;
}

/** The time after the kernel's idle in which an answer may still arrive: the two travel on different sockets. */
const IDLE_GRACE_MS = 300;
const TIMEOUT_MS = 15_000;
const NOT_LOADED = 'kernel_monitor is not loaded in this kernel.';

export class Channel {
  private readonly pending = new Set<(reason: Error) => void>();
  /** The kernel's answer on whether it has the package, while that is awaited. */
  private finding: Promise<void> | null = null;

  /** @param loaded - the kernel is known to have the package */
  constructor(
    private readonly kernel: KernelLike,
    private loaded = false
  ) {}

  /**
   * Send a command and wait for its answer. A kernel that does not have the package is never sent one: it would
   * complain of an unknown message in the server's log.
   *
   * @throws NotLoaded, RequestTimeout, KernelGone, KernelError
   */
  request(
    command: string,
    args: Record<string, unknown> = {},
    options: RequestOptions = {}
  ): Promise<Reply> {
    const send = (): Promise<Reply> =>
      this.send(REQUEST, { protocol: PROTOCOL, command, args }, command, options);
    // Synchronously where possible: a page that is being closed runs no later task.
    return this.loaded ? send() : this.find(command).then(send);
  }

  /** Ask again whether the kernel has the package before the next command. */
  forget(): void {
    this.loaded = false;
    this.finding = null;
  }

  /** Kernels list what pages may talk to; the package puts itself there when it is loaded. */
  private find(command: string): Promise<void> {
    const finding = (this.finding ??= this.send(
      'comm_info_request',
      { target_name: TARGET },
      command,
      {}
    ).then(
      ({ content }) => {
        const found = Object.keys((content.comms as object | undefined) ?? {}).length > 0;
        if (this.finding === finding) {
          this.finding = null;
          this.loaded = found;
        }
        if (!found) {
          throw new NotLoaded(NOT_LOADED);
        }
      },
      (error: unknown) => {
        if (this.finding === finding) {
          this.finding = null;
        }
        throw error;
      }
    ));
    return finding;
  }

  private send(
    type: string,
    content: Record<string, unknown>,
    command: string,
    { timeout = TIMEOUT_MS, later = false }: RequestOptions
  ): Promise<Reply> {
    return new Promise<Reply>((resolve, reject) => {
      let future: FutureLike | null = null;
      let grace: ReturnType<typeof setTimeout> | undefined;
      const settle = (): void => {
        clearTimeout(limit);
        clearTimeout(grace);
        this.pending.delete(fail);
        future?.dispose();
      };
      const fail = (reason: Error): void => {
        settle();
        reject(reason);
      };
      const limit = setTimeout(() => {
        const seconds = Math.round(timeout / 1000);
        fail(new RequestTimeout(`The kernel did not answer “${command}” within ${seconds} s.`));
      }, timeout);
      this.pending.add(fail);
      try {
        future = this.kernel.sendControlMessage(
          controlMessage(this.kernel, type, content) as never,
          true,
          true
        );
      } catch (error) {
        fail(new KernelGone(error instanceof Error ? error.message : String(error)));
        return;
      }
      // The answer, not `done`: a late command's idle comes first, and `done` would wait for both.
      future.onReply = (message: MessageLike) => {
        settle();
        const content = (message.content ?? {}) as Record<string, unknown>;
        if (content.status === 'ok') {
          resolve({ content, buffers: message.buffers ?? [] });
        } else {
          reject(
            new KernelError(
              typeof content.error === 'string' ? content.error : 'Error',
              typeof content.message === 'string'
                ? content.message
                : `The kernel answered “${command}” with an error.`,
              content
            )
          );
        }
      };
      future.onIOPub = (message: MessageLike) => {
        const { execution_state: state } = message.content as { execution_state?: string };
        if (!later && message.header.msg_type === 'status' && state === 'idle') {
          grace ??= setTimeout(() => {
            this.forget();
            fail(new NotLoaded(NOT_LOADED));
          }, IDLE_GRACE_MS);
        }
      };
      future.done.catch((error: unknown) => {
        fail(new KernelGone(error instanceof Error ? error.message : String(error)));
      });
    });
  }

  /** Send a command without waiting for its reply, as when the page is closed. */
  post(command: string, args: Record<string, unknown>): void {
    if (this.kernel.isDisposed || this.kernel.status === 'dead') {
      return;
    }
    this.request(command, args).catch((error: unknown) => {
      console.debug(`kernel_monitor: “${command}” was not answered.`, error);
    });
  }

  /** Reject every pending request: the kernel restarts or the page is closed. */
  cancel(reason: string): void {
    this.forget();
    for (const fail of [...this.pending]) {
      fail(new KernelGone(reason));
    }
  }
}

/** A message for a kernel's control channel, by hand: JupyterLab's own methods wait for the shell's first reply. */
export function controlMessage(
  kernel: Pick<KernelLike, 'clientId' | 'username'>,
  type: string,
  content: Record<string, unknown>
): unknown {
  return {
    header: {
      msg_id: uuid(),
      msg_type: type,
      session: kernel.clientId,
      username: kernel.username,
      date: new Date().toISOString(),
      version: '5.3'
    },
    parent_header: {},
    metadata: {},
    content,
    channel: 'control',
    buffers: []
  };
}

/** A random UUID; `crypto.randomUUID` exists only in secure contexts, and many hubs are reached by plain HTTP. */
export function uuid(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
  return [8, 12, 16, 20, 32]
    .map((end, i, ends) => hex.slice(i === 0 ? 0 : ends[i - 1], end))
    .join('-');
}
