import { readFileSync } from 'fs';
import { join } from 'path';

import { TranslationManager } from '@jupyterlab/translation';

import { stateLabel } from '../components/parts';

const VALUES = ['<1>', '<2>', '<3>', '<4>'];

function catalogue(language: string): Record<string, string[]> {
  const folder = join(__dirname, '../../jupyter_hyperpod/locale', language);
  const path = join(folder, 'LC_MESSAGES/jupyter_hyperpod.json');
  return JSON.parse(readFileSync(path, 'utf8'));
}

/** JupyterLab's own translator, with a catalogue as its server sends it. */
async function translator(language: string) {
  const answer = {
    data: { jupyter_hyperpod: catalogue(language) },
    message: ''
  };
  const connector = { fetch: () => Promise.resolve(answer) };
  const manager = new TranslationManager('', '', undefined, connector as any);
  await manager.fetch(language);
  return manager.load('jupyter_hyperpod');
}

function filled(text: string, values: unknown[]): string {
  return text.replace(/%(\d)/g, (_, place) => `${values[place - 1]}`);
}

describe.each([
  ['de_DE', 'Läuft'],
  ['ja_JP', '実行中']
])('the catalogue of %s', (language, running) => {
  it('is used for the words on the screen', async () => {
    const trans = await translator(language);
    expect(stateLabel('running', trans)).toBe(running);
    expect(stateLabel('of a newer server', trans)).toBe('of a newer server');
  });

  it('has no text that JupyterLab would not find', async () => {
    const trans = await translator(language);
    const german = catalogue('de_DE'); // it has two forms where a text has a plural
    for (const [key, forms] of Object.entries(catalogue(language))) {
      if (key === '') {
        continue;
      }
      const [text, context] = key.split('\u0004').reverse();
      if (german[key].length === 1) {
        const said = context
          ? trans._p(context, text, ...VALUES)
          : trans.__(text, ...VALUES);
        expect(said).toBe(filled(forms[0], VALUES));
      } else {
        for (const [count, form] of [
          [1, forms[0]],
          [2, forms[1] ?? forms[0]]
        ] as const) {
          const said = trans._n(text, text, count, ...VALUES);
          expect(said).toBe(filled(form, [count, ...VALUES]));
        }
      }
    }
  });
});
