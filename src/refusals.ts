/** Shows the server's refusals, so that the remedy is readable without a click. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';

import { ApiError } from './api';
import { said } from './said/said';

/** JupyterLab cuts longer texts. */
export const TOAST_LENGTH = 140;
/** A shorter part of the finding would be useless. */
const LEAST_FOUND = 24;

/**
 * The text of a toast: all of it if it fits, else the whole remedy and as much of the finding as fits.
 * The remedy is the hint, or the last clause of the message: "what was found; what to do".
 */
export function toastText(message: string, hint: string): string {
  const whole = [message, hint].filter(Boolean).join(' ');
  if (whole.length <= TOAST_LENGTH) {
    return whole;
  }
  const at = Math.max(message.lastIndexOf('; '), message.lastIndexOf('\n'));
  const [found, remedy] = hint
    ? [message, hint]
    : [message.slice(0, Math.max(0, at)), message.slice(at + 1).trim()];
  const room = TOAST_LENGTH - remedy.length - 2;
  return room >= LEAST_FOUND && found
    ? `${cut(found, room)}… ${remedy}`
    : `${cut(whole, TOAST_LENGTH - 1)}…`;
}

/** Whole words from the beginning, no longer than `room`. */
function cut(text: string, room: number): string {
  const kept = text.slice(0, room);
  const end = text.length > room ? kept.lastIndexOf(' ') : room;
  return kept.slice(0, end > 0 ? end : room).replace(/[\s,;:.]+$/, '');
}

/** Show a refusal as a toast; the whole text is in a dialog where the toast is too small. */
export function tellRefusal(error: unknown, trans: TranslationBundle): void {
  const refused =
    error instanceof ApiError ? error : { message: String(error), hint: '' };
  const message = said(refused.message, trans);
  const hint = said(refused.hint, trans);
  const text = toastText(message, hint);
  const whole = !text.includes('…') || text === message;
  Notification.error(text, {
    autoClose: whole ? 10_000 : false,
    actions: whole
      ? []
      : [
          {
            label: trans.__('Show all'),
            callback: () => void showWhole(message, hint, trans)
          }
        ]
  });
}

async function showWhole(
  message: string,
  hint: string,
  trans: TranslationBundle
): Promise<void> {
  const body = new Widget();
  body.addClass('jp-Hp-refusal');
  for (const text of [message, hint].filter(Boolean)) {
    const paragraph = document.createElement('p');
    paragraph.textContent = text;
    body.node.append(paragraph);
  }
  await showDialog({
    title: trans.__('The request was refused'),
    body,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
