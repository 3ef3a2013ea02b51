/** What is asked of a notebook's kernel: that it has the magics, where it runs, and a dry run. */

import type { Kernel } from '@jupyterlab/services';

const MODULE = 'jupyter_hyperpod';
/** Does nothing where they are loaded. */
const LOAD = `get_ipython().extension_manager.load_extension("${MODULE}")`;
// As digits, so that no text of the answer is taken for a quote.
const ABOUT = `__import__('json').dumps({
  'python': __import__('sys').executable,
  'version': __import__('platform').python_version(),
  'backend': get_ipython().magics_manager.registry['HyperpodMagics'].backend,
}).encode().hex()`;

/** The kernel's own environment, in which its jobs run, and the backend of a line that names none. */
export interface IAbout {
  python: string;
  version: string;
  backend: string;
}

/** The kernel cannot run the magics. */
export class Unfit extends Error {}

/** What a cell has said. */
export interface ISaid {
  ok: boolean;
  text: string;
}

type Connection = Kernel.IKernelConnection;

/** Load the magics before whatever is asked next. Nobody sees it, and a kernel that lacks them says so at the cell. */
export function load(kernel: Connection): void {
  const future = kernel.requestExecute({
    code: LOAD,
    silent: true,
    store_history: false,
    stop_on_error: false
  });
  void future.done.catch(() => undefined); // the kernel has gone
}

/** Load the magics and ask for the kernel's environment; a busy kernel answers later. Rejects with Unfit. */
export async function about(kernel: Connection): Promise<IAbout> {
  const reply = await kernel.requestExecute({
    code: LOAD,
    silent: true,
    store_history: false,
    user_expressions: { about: ABOUT.replace(/\n\s*/g, ' ') }
  }).done;
  const { content } = reply;
  if (content.status !== 'ok') {
    throw new Unfit('evalue' in content ? String(content.evalue) : '');
  }
  const found = content.user_expressions?.about as
    { data?: { [type: string]: string } } | undefined;
  const digits = /^'([0-9a-f]*)'$/.exec(found?.data?.['text/plain'] ?? '');
  if (digits === null) {
    throw new Unfit('');
  }
  const bytes = (digits[1].match(/../g) ?? []).map(two => parseInt(two, 16));
  return JSON.parse(new TextDecoder().decode(new Uint8Array(bytes)));
}

/** What a cell says, run without a number and without a place in the history. */
export async function say(
  kernel: Connection,
  code: string,
  cellId: string
): Promise<ISaid> {
  load(kernel);
  const future = kernel.requestExecute(
    { code, silent: false, store_history: false, allow_stdin: false },
    true,
    { cellId }
  );
  let text = '';
  future.onIOPub = message => {
    const content = message.content as any;
    if (message.header.msg_type === 'stream') {
      text += content.text;
    } else if (message.header.msg_type === 'error') {
      text += (content.traceback ?? []).join('\n') || content.evalue;
    }
  };
  const reply = await future.done;
  const plain = text.replace(/\x1b\[[0-9;]*m/g, '').trimEnd();
  return { ok: reply.content.status === 'ok', text: plain };
}
