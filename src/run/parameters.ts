/** Parameters of a notebook: the plain assignments in its cell with papermill's tag. Pure. */

/** The tag of the cell with the defaults, as papermill has it. */
export const TAG = 'parameters';

export interface IParameter {
  name: string;
  /** A Python expression. */
  value: string;
  /** The comment behind it. */
  help: string;
}

const ASSIGNMENT =
  /^([A-Za-z_]\w*)[ \t]*(?::[^=#\n]+)?=(?!=)[ \t]*((?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|[^'"#\n])+?)[ \t]*(?:#[ \t]*(.*))?$/;

/** The assignments of one line each; others are left as they are. */
export function parameters(source: string): IParameter[] {
  return source.split('\n').flatMap(line => {
    const found = ASSIGNMENT.exec(line.trimEnd());
    return found && balanced(found[2])
      ? [{ name: found[1], value: found[2], help: found[3] ?? '' }]
      : [];
  });
}

/** The code that gives the parameters other values than `source`; empty where all are the same. */
export function overriding(
  source: string,
  values: Readonly<Record<string, string>>
): string {
  const changed = parameters(source).filter(
    ({ name, value }) =>
      values[name] !== undefined &&
      values[name].trim() !== '' &&
      values[name].trim() !== value
  );
  return changed
    .map(({ name }) => `${name} = ${values[name].trim()}`)
    .join('\n');
}

/** Whether a value ends on its line. */
function balanced(value: string): boolean {
  const bare = value.replace(/'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/g, '');
  const count = (letters: string) =>
    [...bare].filter(letter => letters.includes(letter)).length;
  return count('([{') === count(')]}') && !bare.endsWith('\\');
}
