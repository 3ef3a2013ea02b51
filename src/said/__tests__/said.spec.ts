/** Sentences of the cluster on a page in another language: translated as a whole, or not at all. */

import { nullTranslator } from '@jupyterlab/translation';

import { catalogue, filled, translator } from '../../__tests__/translator';
import { said } from '../said';
import { SENTENCES } from '../sentences';

const NAMES = ['node-1', '3', '12', '4.5', 'tinylm-1a2b3c4d'];

it.each(['de_DE', 'ja_JP'])('all sentences are said in %s', async language => {
  const trans = await translator(language);
  const texts = catalogue(language);
  for (const text of SENTENCES) {
    expect(said(filled(text, NAMES), trans)).toBe(
      filled(texts[text][0], NAMES)
    );
  }
});

describe('a sentence in German', () => {
  it.each([
    [
      'step 8 goes on with 6 of 8 micro-batches kept; the state for 1 newcomer from 2 peers',
      'Schritt 8 geht weiter, 6 von 8 Mikrobatches bleiben erhalten; der Zustand für 1 Neuling von 2 anderen Mitgliedern'
    ],
    ['rank 1 on node-2: network partition', 'Rang 1 auf node-2: Netztrennung'],
    [
      'lends 2 nodes to a job of higher priority and goes on with 1',
      'leiht 2 Knoten an einen Job höherer Priorität aus und macht mit 1 weiter'
    ],
    [
      'waits for 2 nodes more: needs 3 of 4, held by tinylm-1, other-2',
      'wartet auf 2 weitere Knoten: braucht 3 von 4, belegt von tinylm-1, other-2'
    ],
    [
      'the job is to run on 2: rank 2 leaves',
      'der Job soll auf 2 laufen: Rang 2 geht'
    ],
    [
      'rank 1 on node-2 was lost: node lost, a place is empty, and giving the state takes about 0.00 s: it is given at once: 3 of 3 members; node-4 joined',
      'Rang 1 auf node-2 ging verloren: Knoten verloren, ein Platz ist leer, und den Zustand zu übergeben dauert etwa 0.00 s: Er wird sofort übergeben: 3 von 3 Mitgliedern; dazugestoßen: node-4'
    ],
    [
      'tinylm-1a2b3c4d has already ended: failed',
      'tinylm-1a2b3c4d ist schon zu Ende: fehlgeschlagen'
    ],
    ['due at Fri 2026-11-27 06:30', 'fällig um Fri 2026-11-27 06:30']
  ])('has its values and sentences in it: %s', async (english, german) => {
    expect(said(english, await translator('de_DE'))).toBe(german);
  });

  it.each([
    'the disk is made of cheese',
    'rank 1 on node-2: something that no version has said',
    'rank 1 on node-2: network partition; and something unknown',
    'ValueError: all 4 members are here and there',
    `all ${'4'.repeat(2000)} members are here`,
    'all  members are here',
    ''
  ])('stays English where any of it is not known: %s', async english => {
    expect(said(english, await translator('de_DE'))).toBe(english);
  });

  it('is shown as it is on an English page', () => {
    const trans = nullTranslator.load('jupyter_hyperpod');
    const text = 'all 4 members are here';
    expect(said(text, trans)).toBe(text);
  });
});
