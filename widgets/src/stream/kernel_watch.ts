/** Watches a kernel connection: whether it is lost or found again, and our messages on iopub. */

import type { KernelLike, MessageLike } from './channel.js';
import { FRAME, GLANCE, NOTICE } from './protocol.js';

/** `died`: the server starts another process in the place of one that ended unasked. */
export type LostReason = 'dead' | 'died' | 'restarting' | 'disconnected';

interface Watcher {
  onFrame?(message: MessageLike): void;
  onGlance?(message: MessageLike): void;
  /**
   * The kernel's monitor changed its state.
   *
   * @param bokeh - version of the kernel's Bokeh, where it is sent
   */
  onNotice(kind: string, bokeh: string | null): void;
  /** A cell asks for the sidebar of a page, whose connection to the kernel has this session id. */
  onSidebar?(page: string): void;
  /** A cell begins to run. */
  onCell(): void;
  onLost(reason: LostReason): void;
  onFound(): void;
}

interface Notice {
  readonly kind?: unknown;
  readonly bokeh?: unknown;
  readonly page?: unknown;
}

export class KernelWatch {
  /** The kernel or the connection to it is gone, and not back yet. */
  lost = false;

  constructor(
    private readonly kernel: KernelLike,
    private readonly watcher: Watcher
  ) {
    kernel.iopubMessage.connect(this.onIopub);
    kernel.statusChanged.connect(this.onStatus);
    kernel.connectionStatusChanged.connect(this.onConnection);
  }

  dispose(): void {
    this.kernel.iopubMessage.disconnect(this.onIopub);
    this.kernel.statusChanged.disconnect(this.onStatus);
    this.kernel.connectionStatusChanged.disconnect(this.onConnection);
  }

  private readonly onIopub = (_: unknown, message: MessageLike): void => {
    switch (message.header.msg_type) {
      case FRAME:
        this.watcher.onFrame?.(message);
        break;
      case GLANCE:
        this.watcher.onGlance?.(message);
        break;
      case NOTICE:
        this.notice(message.content as Notice);
        break;
      case 'execute_input':
        this.watcher.onCell();
        break;
    }
  };

  private readonly onStatus = (_: unknown, status: string): void => {
    if (status === 'dead' || status === 'terminating') {
      this.lose('dead');
    } else if (status === 'autorestarting') {
      this.lose('died');
    } else if (status === 'restarting') {
      this.lose('restarting');
    } else if (status === 'idle' || status === 'busy') {
      this.find();
    }
  };

  private readonly onConnection = (_: unknown, status: string): void => {
    if (status === 'connected') {
      // Not by its status: a kernel that runs a cell sends no status on reconnection, yet its control channel answers.
      this.find();
    } else if (this.kernel.status !== 'dead') {
      this.lose('disconnected');
    }
  };

  private notice({ kind, bokeh, page }: Notice): void {
    if (kind === 'sidebar') {
      this.watcher.onSidebar?.(String(page));
      return;
    }
    this.watcher.onNotice(String(kind), typeof bokeh === 'string' ? bokeh : null);
  }

  private lose(reason: LostReason): void {
    this.lost = true;
    this.watcher.onLost(reason);
  }

  private find(): void {
    if (this.lost) {
      this.lost = false;
      this.watcher.onFound();
    }
  }
}
