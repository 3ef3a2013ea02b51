/** The line `%%hyperpod …` of a cell, read into a form's choice and written from it. Pure. */

const HEADER = /^%%hyperpod(?=\s|$)/;
const OWN_LOAD = /^\s*%(load|reload)_ext\s+jupyter_hyperpod\s*(#.*)?$/;
const OWN_VERB = /^%hyperpod(\s|$)/;

/** What the form asks for. Empty text and null stand for an option that the line does not have. */
export interface IChoice {
  backend: string;
  nodes: number | null;
  /** As the line has it: `2:4`, `2:8:2` or `1,2,4`. */
  elastic: string;
  name: string;
  priority: number | null;
  spares: number | null;
  queue: string;
  python: string;
  /** Names with commas between them. */
  push: string;
  pull: string;
  /** When it runs, as five fields of cron; empty for at once. */
  schedule: string;
  /** The time zone of these times, such as Europe/Berlin. */
  zone: string;
  /** The cell returns at once. */
  detach: boolean;
  /** Options of SLURM, by name. */
  slurm: Record<string, string>;
  /** All other words of the line, unchanged. */
  other: string;
}

/** Changes some fields of a choice. */
export type Change = (fields: Partial<IChoice>) => void;

export const NOTHING: IChoice = {
  backend: '',
  nodes: null,
  elastic: '',
  name: '',
  priority: null,
  spares: null,
  queue: '',
  python: '',
  push: '',
  pull: '',
  schedule: '',
  zone: '',
  detach: false,
  slurm: {},
  other: ''
};

type TextField =
  'backend' | 'elastic' | 'name' | 'queue' | 'python' | 'schedule' | 'zone';
type NumberField = 'nodes' | 'priority' | 'spares';
type NamesField = 'push' | 'pull';

const TEXTS: Record<string, TextField> = {
  '--backend': 'backend',
  '--elastic': 'elastic',
  '--name': 'name',
  '--queue': 'queue',
  '--python': 'python',
  '--schedule': 'schedule',
  '--time-zone': 'zone'
};
const NUMBERS: Record<string, NumberField> = {
  '--nodes': 'nodes',
  '--priority': 'priority',
  '--spares': 'spares'
};
const NAMES: Record<string, NamesField> = {
  '--push': 'push',
  '--pull': 'pull'
};

/** The words of a line as Python's `shlex.split` has them; null where a quote has no end. */
export function split(line: string): string[] | null {
  const words: string[] = [];
  let word: string | null = null;
  let quote = '';
  for (let at = 0; at < line.length; at++) {
    const letter = line[at];
    if (quote) {
      if (letter === quote) {
        quote = '';
      } else if (
        quote === '"' &&
        letter === '\\' &&
        /["\\]/.test(line[at + 1] ?? '')
      ) {
        word += line[++at];
      } else {
        word += letter;
      }
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= '';
    } else if (/[ \t\r\n]/.test(letter)) {
      if (word !== null) {
        words.push(word);
      }
      word = null;
    } else if (letter === '\\') {
      if (at + 1 === line.length) {
        return null;
      }
      word = (word ?? '') + line[++at];
    } else {
      word = (word ?? '') + letter;
    }
  }
  if (quote) {
    return null;
  }
  return word === null ? words : [...words, word];
}

/** A word as `split` reads it again. */
export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word)
    ? word
    : `'${word.replace(/'/g, `'"'"'`)}'`;
}

/** Read the options of a line, with or without its `%%hyperpod`. Null where a quote has no end. */
export function read(line: string): IChoice | null {
  const words = split(line.replace(HEADER, ''));
  if (words === null) {
    return null;
  }
  const choice: IChoice = { ...NOTHING, slurm: {} };
  const other: string[] = [];
  while (words.length) {
    const word = words.shift()!;
    if (word === '--detach') {
      choice.detach = true;
      continue;
    }
    const [name, ...rest] = word.split('=');
    const joined = rest.length > 0;
    const value = joined ? rest.join('=') : words[0];
    if (value === undefined || !take(choice, name, value)) {
      other.push(word);
    } else if (!joined) {
      words.shift();
    }
  }
  choice.other = other.map(quoted).join(' ');
  return choice;
}

/** Put an option into the choice; false where the form does not have it, or not with this value. */
function take(choice: IChoice, name: string, value: string): boolean {
  if (name in TEXTS) {
    choice[TEXTS[name]] = value;
    return value !== '';
  }
  if (name in NUMBERS && /^[+-]?\d{1,9}$/.test(value)) {
    choice[NUMBERS[name]] = Number(value);
    return true;
  }
  if (name in NAMES && value !== '') {
    const field = NAMES[name];
    choice[field] = [choice[field], value].filter(Boolean).join(',');
    return true;
  }
  const [option, ...rest] = value.split('=');
  if (name === '--slurm' && option && rest.join('=')) {
    choice.slurm = { ...choice.slurm, [option]: rest.join('=') };
    return true;
  }
  return false;
}

/** The line of a choice. An option that has no value is left out. */
export function write(choice: IChoice): string {
  const words = ['%%hyperpod'];
  const add = (name: string, value: string | number | null) => {
    if (value !== null && value !== '') {
      words.push(name, quoted(String(value)));
    }
  };
  add('--backend', choice.backend);
  add('--nodes', choice.nodes);
  add('--elastic', choice.elastic);
  add('--name', choice.name);
  add('--priority', choice.priority);
  add('--spares', choice.spares);
  add('--queue', choice.queue);
  add('--python', choice.python);
  add('--push', choice.push);
  add('--pull', choice.pull);
  add('--schedule', choice.schedule.trim());
  add('--time-zone', choice.zone);
  for (const [option, value] of Object.entries(choice.slurm)) {
    add('--slurm', value && `${option}=${value}`);
  }
  if (choice.detach) {
    words.push('--detach');
  }
  const other = choice.other.trim().replace(/\s*[\r\n]+\s*/g, ' ');
  return [...words, ...(other ? [other] : [])].join(' ');
}

/** The same line with the options of `choice`: unchanged, to the letter, where it has them already. */
export function rewritten(line: string, choice: IChoice): string {
  const known = read(line);
  const written = write(choice);
  return known && write(known) === written ? line : written;
}

/** The line `%%hyperpod …` in a cell, which only comments and empty lines may precede, and where it stands. */
export interface IHeader {
  line: string;
  start: number;
  end: number;
}

export function header(source: string): IHeader | null {
  const start = firstCode(source);
  const end = endOfLine(source, start);
  const line = source.slice(start, end).trimEnd();
  return HEADER.test(line) ? { line, start, end: start + line.length } : null;
}

/** The magic of somebody else with which a cell begins, as `%%time`; empty where there is none. */
export function otherMagic(source: string): string {
  const found = /^%%(\w+)/.exec(source.slice(firstCode(source)));
  return found && found[1] !== 'hyperpod' ? found[0] : '';
}

/** The cell with this header, in the place of the one that it has or above everything; lines that load the magics go. */
export function withHeader(source: string, line: string): string {
  const known = header(source);
  const above = known ? source.slice(0, known.start) : '';
  const below = known ? source.slice(known.end) : `\n${source}`;
  return withoutLoads(above) + line + withoutLoads(below);
}

function withoutLoads(source: string): string {
  return source
    .split('\n')
    .filter(line => !OWN_LOAD.test(line))
    .join('\n');
}

/**
 * The code of one cell as a part of a job: without header, without the lines that load the magics; `from`: the line of
 * the cell at which it begins. Lines in it keep their numbers.
 */
export function part(source: string): { code: string; from: number } {
  const known = header(source);
  const code = known
    ? source.slice(0, known.start) + source.slice(known.end)
    : source;
  const lines = code
    .split('\n')
    .map(line => (OWN_LOAD.test(line) ? '' : line.trimEnd()));
  // A cell that only asks about jobs is for the notebook.
  const first = lines.findIndex(Boolean);
  return lines.every(line => !line || OWN_VERB.test(line))
    ? { code: '', from: 1 }
    : { code: lines.slice(first).join('\n').trimEnd(), from: first + 1 };
}

/** Whether a cell has anything for a cluster. */
export function hasCode(source: string): boolean {
  return part(source)
    .code.split('\n')
    .some(line => line.trim() && !line.trim().startsWith('#'));
}

/** Whether a cell is run by the magics. */
export function needsMagics(source: string): boolean {
  return (
    header(source) !== null ||
    source.split('\n').some(line => OWN_VERB.test(line))
  );
}

/** A code cell of a notebook: the number that counts from 1, and its text. */
export interface INumbered {
  number: number;
  source: string;
}

/**
 * Several cells as one: their code in its order, with an empty line between two. A comment names each cell and its
 * notebook; from these `storage/joined_cells.py` knows which line is meant.
 */
export function joined(cells: readonly INumbered[], notebook: string): string {
  return cells
    .map(({ number, source }) => {
      const { code, from } = part(source);
      const begins = from > 1 ? `, from line ${from}` : '';
      return (
        code && `# %% code cell ${number} of ${notebook}${begins}\n${code}`
      );
    })
    .filter(Boolean)
    .join('\n\n');
}

function firstCode(source: string): number {
  let at = 0;
  while (at < source.length) {
    const end = endOfLine(source, at);
    const line = source.slice(at, end).trim();
    if (line && !line.startsWith('#')) {
      break;
    }
    at = Math.min(end + 1, source.length);
  }
  return at;
}

function endOfLine(source: string, from: number): number {
  const end = source.indexOf('\n', from);
  return end < 0 ? source.length : end;
}
