/**
 * What the cluster says, in the language of the page.
 *
 * Journals, logs and the terminal have each sentence in English. Here it is compared with the sentences that the
 * Python sources can say; one that is among them is shown in its translation, with the same values. Any other, and one
 * with a value that may be words rather than a name, is shown as it is: no sentence is half translated.
 */

/* eslint-disable jupyter/no-dynamic-translation -- `translations/sentences.py` takes these texts */

import type { TranslationBundle } from '@jupyterlab/translation';

import { SENTENCES } from './sentences';

/** Longer texts are tracebacks and logs. */
const LONGEST = 1000;
/** Sentences that are remembered, which are drawn again and again. */
const REMEMBERED = 2000;
/** Sentences within sentences; the values of the innermost are names. */
const DEPTH = 4;
/** Colons and semicolons between sentences. */
const BETWEEN = 8;

const PARTS = SENTENCES.map(text => ({ text, parts: text.split(/%\d/) })).sort(
  (a, b) => size(b.parts) - size(a.parts)
);

/** The letters that are the same whatever the values: the more there are, the more is certain. */
function size(parts: readonly string[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

const UNIT = '(?:[num]?s|min|h|d|[kMGTP]?B|[kMG]|%)';
const QUANTITY = `-?[\\d.,]+ ${UNIT}(?:/s)?(?: \\d+ (?:min|s))?(?![^\\s,])`;
const TIME =
  '(?:[A-Z][a-z]{2} )?\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d(?::\\d\\d)?';
const QUOTED = '"[^"]*"|\'[^\']*\'|`[^`]*`';
/** One name, number, time or quotation. */
const ITEM = new RegExp(`${QUOTED}|${TIME}|${QUANTITY}|[^\\s,]+`, 'y');
const COMMA = /, ?/y;

const known = new WeakMap<TranslationBundle, Map<string, string>>();

/** A sentence of the cluster in the language of the page; as it is where it is not among the known ones. */
export function said(text: string, trans: TranslationBundle): string {
  if (!text || text.length > LONGEST || !translates(trans)) {
    return text;
  }
  const before = known.get(trans) ?? new Map<string, string>();
  known.set(trans, before);
  let told = before.get(text);
  if (told === undefined) {
    told = lines(text, trans) ?? text;
    if (before.size >= REMEMBERED) {
      before.clear();
    }
    before.set(text, told);
  }
  return told;
}

/** Whether there is another language than English. */
function translates(trans: TranslationBundle): boolean {
  const probe = SENTENCES[0];
  return trans.gettext(probe) !== probe;
}

/** Each line, if all of them are known. */
function lines(text: string, trans: TranslationBundle): string | null {
  const told = text
    .split('\n')
    .map(line => sentence(line, trans, DEPTH, BETWEEN));
  return told.includes(null) ? null : told.join('\n');
}

/**
 * A sentence, or several with colons or semicolons between them. It is known if it can be read as one that is, and if
 * all ways to read it say the same.
 */
function sentence(
  text: string,
  trans: TranslationBundle,
  depth: number,
  between: number
): string | null {
  const found = new Set<string>();
  for (const one of PARTS) {
    const values = valuesIn(text, one.parts);
    if (values === null || trans.gettext(one.text) === one.text) {
      continue;
    }
    const told = values.map((value, at) =>
      valueOf(value, trans, depth, mayBeClauses(one.parts, at))
    );
    if (!told.includes(null)) {
      found.add(trans.gettext(one.text, ...(told as string[])));
    }
  }
  for (const match of between > 0 ? text.matchAll(/[:;] /g) : []) {
    const left = sentence(text.slice(0, match.index), trans, depth, 0);
    const rest = text.slice(match.index + match[0].length);
    const right =
      left === null ? null : sentence(rest, trans, depth, between - 1);
    if (left !== null && right !== null) {
      found.add(left + match[0] + right);
    }
  }
  return found.size === 1 ? [...found][0] : null;
}

/** Whether a value may have clauses of its own: where the sentence begins with it, or after a colon or the like. */
function mayBeClauses(parts: readonly string[], at: number): boolean {
  return /^$|[:;,(] $|\($/.test(parts[at]);
}

/** A value as it is shown: a sentence in its translation, a name as it is; null where it is neither. */
function valueOf(
  value: string,
  trans: TranslationBundle,
  depth: number,
  clauses: boolean
): string | null {
  const inner =
    depth > 0 && (clauses || !/[:;] /.test(value))
      ? sentence(value, trans, depth - 1, 0)
      : null;
  return inner ?? (isName(value) ? value : null);
}

/** Whether a value is no words: a name, number, time or quotation, or several of them with commas between. */
function isName(value: string): boolean {
  for (let at = 0; ; at = COMMA.lastIndex) {
    ITEM.lastIndex = at;
    if (!ITEM.test(value)) {
      return false;
    }
    if (ITEM.lastIndex === value.length) {
      return true;
    }
    COMMA.lastIndex = ITEM.lastIndex;
    if (!COMMA.test(value)) {
      return false;
    }
  }
}

/** What stands between the parts of a sentence, in a text that is made of it; null where it is made otherwise. */
function valuesIn(text: string, parts: readonly string[]): string[] | null {
  const last = parts[parts.length - 1];
  if (parts.length === 1) {
    return text === last ? [] : null;
  }
  if (!text.startsWith(parts[0]) || !text.endsWith(last)) {
    return null;
  }
  const values: string[] = [];
  let at = parts[0].length;
  for (let index = 1; index < parts.length; index++) {
    const end =
      index === parts.length - 1
        ? text.length - last.length
        : text.indexOf(parts[index], at + 1);
    if (end <= at) {
      return null;
    }
    values.push(text.slice(at, end));
    at = end + parts[index].length;
  }
  return values;
}
