/** The filter of the table of runs: words, `field:text`, `field<number`, and a minus before any of them. Pure. */

import type { IRun } from '../api';

/** A run with all of its text in small letters, made once. */
export interface IIndexed {
  run: IRun;
  text: string;
}

type Comparison = '<' | '<=' | '>' | '>=' | '=';

export interface ITerm {
  not: boolean;
  /** Empty: anywhere. */
  field: string;
  text: string;
  /** With a comparison: a number. */
  comparison: Comparison | null;
  value: number;
  /** What stands behind < or > and is no number: the term is looked for as a word, in code. */
  misread: string;
}

/** Word to the sources that contain it, by their names. */
export type Sources = ReadonlyMap<string, ReadonlySet<string>>;

const TERM =
  /(-?)(?:([\w./%]+)(:|<=|>=|<|>|=)(?:"([^"]*)"|(\S*))|"([^"]*)"|(\S+))/g;

export function parse(filter: string): ITerm[] {
  const terms: ITerm[] = [];
  for (const found of filter.matchAll(TERM)) {
    const [, minus, field, sign, quoted, plain, phrase, word] = found;
    const told = quoted ?? plain ?? phrase ?? word ?? '';
    const value =
      Number(told.replace(/%$/, '')) / (told.endsWith('%') ? 100 : 1);
    const compares = field !== undefined && sign !== ':';
    if (told === '') {
      continue; // not all of it is written yet
    }
    if (compares && !Number.isFinite(value)) {
      // Code such as `lr=x`.
      const text = found[0].slice(minus.length).replace(/"/g, '');
      const misread = sign === '=' ? '' : told;
      terms.push({ ...plainTerm(minus === '-', '', text), misread });
    } else {
      terms.push({
        ...plainTerm(minus === '-', (field ?? '').toLowerCase(), told),
        comparison: compares ? (sign as Comparison) : null,
        value
      });
    }
  }
  return terms;
}

function plainTerm(not: boolean, field: string, text: string): ITerm {
  return {
    not,
    field,
    text: text.toLowerCase(),
    comparison: null,
    value: NaN,
    misread: ''
  };
}

/** The words that have to be looked for in sources, too. */
export function sourceWords(terms: readonly ITerm[]): string[] {
  const words = terms
    .filter(term => !term.comparison && ['', 'code'].includes(term.field))
    .map(term => term.text)
    .filter(text => text.length > 1);
  return [...new Set(words)].slice(0, 8);
}

/** Whether the filter itself is about the archive; otherwise archived runs are left out. */
export function asksForArchive(terms: readonly ITerm[]): boolean {
  return terms.some(term => term.field === 'is' && term.text === 'archived');
}

export function index(run: IRun): IIndexed {
  const parameters = Object.entries(run.parameters).map(
    ([name, value]) => `${name}=${value}`
  );
  const parts = [
    run.id,
    run.name,
    run.person,
    run.notebook,
    run.state,
    run.reason,
    run.backend,
    run.queue,
    run.note,
    ...run.tags,
    ...parameters
  ];
  return { run, text: parts.join('\n').toLowerCase() };
}

export function matches(
  { run, text }: IIndexed,
  terms: readonly ITerm[],
  sources: Sources
): boolean {
  return terms.every(term => has(run, text, term, sources) !== term.not);
}

function has(run: IRun, text: string, term: ITerm, sources: Sources): boolean {
  if (term.comparison) {
    return compare(numberOf(run, term.field), term.comparison, term.value);
  }
  const inCode = () => sources.get(term.text)?.has(run.code) ?? false;
  switch (term.field) {
    case '':
      return text.includes(term.text) || inCode();
    case 'code':
      return inCode() || (!!term.text && run.code.startsWith(term.text));
    case 'tag':
    case 'tags':
      return run.tags.some(tag => tag.toLowerCase() === term.text);
    case 'is':
      return term.text === 'archived' ? run.archived : is(run, term.text);
    case 'state':
      return run.state.startsWith(term.text);
    default:
      return textOf(run, term.field).toLowerCase().includes(term.text);
  }
}

function is(run: IRun, word: string): boolean {
  const ended = run.ended_s !== null;
  return word === 'ended' ? ended : word === 'active' ? !ended : false;
}

function textOf(run: IRun, field: string): string {
  const named: Record<string, string> = {
    name: run.name,
    id: run.id,
    person: run.person,
    notebook: run.notebook,
    backend: run.backend,
    queue: run.queue,
    note: run.note,
    reason: run.reason,
    sweep: run.sweep
  };
  return named[field] ?? run.parameters[field] ?? '';
}

/** A number of a run by the name of its column, of a logged value or of a parameter. */
export function numberOf(run: IRun, field: string): number | null {
  const named: Record<string, number | null> = {
    priority: run.priority,
    nodes: run.nodes,
    step: run.step,
    steps: run.step,
    loss: run.loss,
    goodput: run.goodput,
    incidents: run.incidents,
    time: seconds(run)
  };
  if (Object.hasOwn(named, field)) {
    return named[field];
  }
  for (const [name, value] of Object.entries(run.metrics)) {
    if (name.toLowerCase() === field) {
      return value;
    }
  }
  const parameter = Number(run.parameters[field] ?? NaN);
  return Number.isNaN(parameter) ? null : parameter;
}

/** How long a run took, or has run so far. */
export function seconds(run: IRun, now_s = Date.now() / 1000): number | null {
  return run.started_s === null
    ? null
    : Math.max(0, (run.ended_s ?? now_s) - run.started_s);
}

function compare(
  found: number | null,
  comparison: Comparison,
  value: number
): boolean {
  if (found === null) {
    return false;
  }
  switch (comparison) {
    case '<':
      return found < value;
    case '<=':
      return found <= value;
    case '>':
      return found > value;
    case '>=':
      return found >= value;
    default:
      return found === value;
  }
}
