/** The sentences of the form. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { Problem } from './choice';

/** What is wrong with a field, and what is expected; empty where nothing is. */
export function problemText(
  problem: Problem | undefined,
  trans: TranslationBundle
): string {
  switch (problem) {
    case 'nodes':
      return trans.__('Expected a whole number from 1 on.');
    case 'range':
      return trans.__('Expected two numbers from 1 on, the smaller one first.');
    case 'outside':
      return trans.__('The number of nodes lies outside of this range.');
    case 'name':
      return trans.__(
        'Use 1 to 40 letters, digits, "-" or "_", beginning with a letter or digit.'
      );
    case 'priority':
      return trans.__('Expected -1000 (lowest) to 1000 (highest).');
    case 'spares':
      return trans.__('Expected a whole number from 0 on.');
    case 'python':
      return trans.__(
        'Expected an absolute path, such as /opt/env/bin/python.'
      );
    default:
      return '';
  }
}

/** A scheduler's nodes by its own words: `3 idle, 1 down`. */
export function stateTally(
  states: Readonly<Record<string, number>>,
  trans: TranslationBundle
): string {
  const found = Object.entries(states).sort((a, b) => b[1] - a[1]);
  return found.length
    ? trans.__(
        'Nodes: %1.',
        found.map(([state, count]) => `${count} ${state}`).join(', ')
      )
    : trans.__('It shows no nodes.');
}
