/** What a table without rows says: what is wrong with the filter, or that nothing matches. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { useShared } from '../components/context';
import { Button } from '../components/parts';
import type { ITerm } from './filter';

/** As the server writes them; `lost` is a job that nobody leads. */
const STATES = [
  'pending',
  'running',
  'recovering',
  'succeeded',
  'failed',
  'stopped',
  'lost'
];
const KINDS = ['archived', 'active', 'ended'];

/** Why a filter without a match can match nothing, as a sentence; empty where nothing is wrong with it. */
export function mistakeIn(
  terms: readonly ITerm[],
  trans: TranslationBundle
): string {
  for (const { not, field, text, misread, comparison } of terms) {
    const begins = (word: string) => word.startsWith(text);
    if (not || comparison) {
      continue;
    }
    if (misread) {
      return trans.__("'%1' is not a number.", misread);
    }
    if (field === 'state' && !STATES.some(begins)) {
      return trans.__(
        "No state is called '%1'; states are %2.",
        text,
        STATES.join(', ')
      );
    }
    if (field === 'is' && !KINDS.includes(text)) {
      return trans.__(
        "'%1' cannot stand after is: – it takes %2.",
        text,
        KINDS.join(', ')
      );
    }
  }
  return '';
}

/** In the place of the rows that a filter leaves out. */
export function NoMatch(props: {
  terms: readonly ITerm[];
  onClear: () => void;
}): JSX.Element {
  const { trans } = useShared();
  return (
    <div className="jp-Hp-row jp-Hp-quiet jp-Hp-nomatch">
      <span>
        {props.terms.length === 0
          ? trans.__('All runs are in the archive: is:archived shows them.')
          : mistakeIn(props.terms, trans) ||
            trans.__('No run matches the filter.')}
      </span>
      {props.terms.length > 0 && (
        <Button onClick={props.onClear}>{trans.__('Clear')}</Button>
      )}
    </div>
  );
}
