/** JupyterLab's own translator, with the catalogues that are shipped. */

import { readFileSync } from 'fs';
import { join } from 'path';

import { TranslationBundle, TranslationManager } from '@jupyterlab/translation';

/** What JupyterLab reads of a language. */
export function catalogue(language: string): Record<string, string[]> {
  const folder = join(__dirname, '../../jupyter_hyperpod/locale', language);
  const path = join(folder, 'LC_MESSAGES/jupyter_hyperpod.json');
  return JSON.parse(readFileSync(path, 'utf8'));
}

/** A translator with a catalogue as the server sends it. */
export async function translator(language: string): Promise<TranslationBundle> {
  const answer = {
    data: { jupyter_hyperpod: catalogue(language) },
    message: ''
  };
  const connector = { fetch: () => Promise.resolve(answer) };
  const manager = new TranslationManager('', '', undefined, connector as any);
  await manager.fetch(language);
  return manager.load('jupyter_hyperpod');
}

/** A text with its values. */
export function filled(text: string, values: unknown[]): string {
  return text.replace(/%(\d)/g, (_, place) => `${values[place - 1]}`);
}
