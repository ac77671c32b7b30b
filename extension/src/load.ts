/** Load `kernel_monitor` into a kernel that never did, in the middle of a running cell where the kernel can. */

import { Kernel, KernelMessage } from '@jupyterlab/services';
import { controlMessage } from '@kernel-monitor/widgets';

import { untrack } from './untracked.js';

/** A subshell shares the user's names: this one expression, which binds none, is all that is ever sent. */
const LOAD = "get_ipython().run_line_magic('load_ext', 'kernel_monitor')";
const SUBSHELLS = 'kernel subshells';
const ANSWER_MS = 10_000;

/** `kernel_monitor` is not in the kernel's environment; the message says how to get it there. */
class NotInstalled extends Error {
  override name = 'NotInstalled';
}

/** Loading failed in the kernel. */
class LoadFailed extends Error {
  override name = 'LoadFailed';
}

type Reply = KernelMessage.IExecuteReplyMsg['content'];

/**
 * @param show - Takes the sentence to show while loading lasts.
 * @throws NotInstalled, LoadFailed; an Error when the kernel goes away meanwhile.
 */
export async function load(
  kernel: Kernel.IKernelConnection,
  show: (text: string) => void
): Promise<void> {
  let subshell: string | null = null;
  let trackAgain = (): void => undefined;
  try {
    if (kernel.status !== 'idle') {
      if (await supportsSubshells(kernel)) {
        show('loading kernel_monitor beside the running cell…');
        trackAgain = untrack('execute_request');
        subshell = await createSubshell(kernel);
      } else {
        show(
          'waiting for the running cell: this kernel runs one thing at a time (ipykernel 7 would not have to wait)'
        );
      }
    } else {
      show('loading kernel_monitor…');
    }
    const reply = await run(kernel, subshell);
    if (reply.status === 'error') {
      throw reply.ename === 'ModuleNotFoundError' && reply.evalue.includes("'kernel_monitor'")
        ? new NotInstalled(await installInstructions(kernel, subshell))
        : new LoadFailed(`kernel_monitor could not be loaded: ${reply.ename}: ${reply.evalue}`);
    }
  } finally {
    if (subshell !== null) {
      await deleteSubshell(kernel, subshell);
    }
    // Only after the connection has dealt with the last *Idle* that was not to be shown.
    setTimeout(trackAgain);
  }
}

/** Return whether code can run beside a busy main shell. Asked on the control channel: the shell would answer too late. */
async function supportsSubshells(kernel: Kernel.IKernelConnection): Promise<boolean> {
  const features = (await ask(kernel, 'kernel_info_request')).supported_features;
  return Array.isArray(features) && features.includes(SUBSHELLS);
}

async function createSubshell(kernel: Kernel.IKernelConnection): Promise<string> {
  const id = (await ask(kernel, 'create_subshell_request')).subshell_id;
  if (typeof id !== 'string') {
    throw new LoadFailed('The kernel could not make a subshell.');
  }
  return id;
}

async function deleteSubshell(kernel: Kernel.IKernelConnection, id: string): Promise<void> {
  if (!kernel.isDisposed && kernel.status !== 'dead') {
    await ask(kernel, 'delete_subshell_request', { subshell_id: id });
  }
}

/** Run the one expression; again when an error in the cell before it made the kernel drop what was queued. */
async function run(kernel: Kernel.IKernelConnection, subshell: string | null): Promise<Reply> {
  for (;;) {
    const content = await execute(kernel, LOAD, {}, subshell);
    // JupyterLab's types say `abort`, ipykernel says `aborted`.
    if (!(content.status as string).startsWith('abort')) {
      return content;
    }
  }
}

/**
 * Execute silently, on the main shell (`subshell` null) or beside it.
 *
 * On a subshell the status messages of this request are not shown (`untrack` above). Should the user's own cell end
 * in that moment, its *Idle* was not shown either: then one cheap request makes the kernel say it again.
 */
async function execute(
  kernel: Kernel.IKernelConnection,
  code: string,
  expressions: Record<string, string>,
  subshell: string | null
): Promise<Reply> {
  const message = KernelMessage.createMessage<KernelMessage.IExecuteRequestMsg>({
    msgType: 'execute_request',
    channel: 'shell',
    username: kernel.username,
    session: kernel.clientId,
    subshellId: subshell,
    content: {
      code,
      silent: true,
      store_history: false,
      user_expressions: expressions,
      allow_stdin: false,
      stop_on_error: false
    }
  });
  const missed: KernelMessage.IIOPubMessage[] = [];
  const watch = (_: unknown, other: KernelMessage.IIOPubMessage): void => {
    const parent = other.parent_header as Partial<KernelMessage.IHeader>;
    if (
      KernelMessage.isStatusMsg(other) &&
      other.content.execution_state === 'idle' &&
      parent.msg_type === 'execute_request' &&
      parent.msg_id !== message.header.msg_id
    ) {
      missed.push(other);
    }
  };
  if (subshell !== null) {
    kernel.iopubMessage.connect(watch);
  }
  try {
    // `done` also waits for the request's own *Idle* on this connection, so that it is over when tracking resumes.
    const reply = await kernel.sendShellMessage(message, true, true).done;
    return (reply as KernelMessage.IExecuteReplyMsg).content;
  } finally {
    kernel.iopubMessage.disconnect(watch);
    if (missed.length > 0 && !kernel.isDisposed) {
      void kernel.requestIsComplete({ code: '' });
    }
  }
}

/** Return how to install into this very kernel's environment; the user's names are not touched. */
async function installInstructions(
  kernel: Kernel.IKernelConnection,
  subshell: string | null
): Promise<string> {
  const reply = await execute(kernel, '', { python: "__import__('sys').executable" }, subshell);
  const value = reply.status === 'ok' ? reply.user_expressions.python : undefined;
  const text = (value as { data?: Record<string, string> } | undefined)?.data?.['text/plain'];
  const python = text?.replace(/^['"]|['"]$/g, '') ?? 'python';
  const name = python.includes(' ') ? `"${python}"` : python;
  return (
    `kernel_monitor is not installed in this kernel's environment. ` +
    `Install it there with: ${name} -m pip install kernel-monitor`
  );
}

/**
 * Ask on the control channel. JupyterLab's own methods refuse until the main shell has sent the kernel's
 * `kernel_info`, which after a page's reload is when the running cell ends.
 */
async function ask(
  kernel: Kernel.IKernelConnection,
  type: string,
  content: Record<string, unknown> = {}
): Promise<Record<string, unknown>> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new LoadFailed(`The kernel did not answer “${type}” within ${ANSWER_MS / 1000} s.`));
    }, ANSWER_MS);
  });
  try {
    const reply = await Promise.race([
      kernel.sendControlMessage(controlMessage(kernel, type, content) as never, true, true).done,
      timeout
    ]);
    return reply.content as Record<string, unknown>;
  } finally {
    clearTimeout(timer);
  }
}
