import { stateLabel } from '../components/parts';
import { catalogue, filled, translator } from './translator';

const VALUES = ['<1>', '<2>', '<3>', '<4>', '<5>'];

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
