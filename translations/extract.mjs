/**
 * Prints, as JSON, each text that the sources in a folder pass to JupyterLab's translator, with its files.
 * Whatever could not be translated on the screen is said on the error stream, with its place, and ends this with 1.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';

import ts from 'typescript';

/** Where the arguments of a call are: the context, the text, its plural with the number; values come after them. */
const CALLS = {
  __: { text: 0 },
  gettext: { text: 0 },
  _n: { text: 0, plural: 1 },
  ngettext: { text: 0, plural: 1 },
  _p: { context: 0, text: 1 },
  pgettext: { context: 0, text: 1 },
  _np: { context: 0, text: 1, plural: 2 },
  npgettext: { context: 0, text: 1, plural: 2 }
};

/** Not read: `said` shows the cluster's sentences, which are taken from its Python sources. */
const OTHERS = ['__tests__', 'said'];

const top = resolve(process.argv[2] ?? 'src');
const found = new Map();
const problems = [];

function walk(folder) {
  const entries = readdirSync(folder, { withFileTypes: true });
  return entries.flatMap(entry => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) {
      return OTHERS.includes(entry.name) ? [] : walk(path);
    }
    return /\.tsx?$/.test(entry.name) ? [path] : [];
  });
}

/** The text of a literal, also of several with `+` between them; undefined where it is known only when it runs. */
function literal(node) {
  if (node === undefined) {
    return undefined;
  }
  if (ts.isStringLiteralLike(node)) {
    return node.text;
  }
  if (ts.isParenthesizedExpression(node)) {
    return literal(node.expression);
  }
  if (
    ts.isBinaryExpression(node) &&
    node.operatorToken.kind === ts.SyntaxKind.PlusToken
  ) {
    const parts = [literal(node.left), literal(node.right)];
    return parts.includes(undefined) ? undefined : parts.join('');
  }
  return undefined;
}

/** The numbers of the values in a text: `%1 of %2` has 1 and 2; `%%` is a percent sign. */
function places(text) {
  const matches = text.replace(/%%/g, '').matchAll(/%(\d+)/g);
  return new Set([...matches].map(match => Number(match[1])));
}

/** What is wrong with a call; empty where nothing is. */
function wrong(call, form, message) {
  const { text, plural, context } = message;
  if (call.arguments.some(ts.isSpreadElement)) {
    return 'it hides its texts or values in a "..."; write them out, one argument each';
  }
  if (
    text === undefined ||
    ('plural' in form && plural === undefined) ||
    ('context' in form && context === undefined)
  ) {
    return 'a text is put together while the page runs; write it as one literal, with %1 where a value goes';
  }
  const used = new Set([...places(text), ...places(plural ?? '')]);
  const before = 'plural' in form ? form.plural + 1 : form.text + 1;
  const given = call.arguments.length - before;
  for (const number of used) {
    if (number > given) {
      return `"${text}" has %${number}, but ${given} value(s) follow; %${number} would be shown as "undefined"`;
    }
  }
  for (let number = plural === undefined ? 1 : 2; number <= given; number++) {
    if (!used.has(number)) {
      return `"${text}" has no %${number}, but a value for it follows`;
    }
  }
  return '';
}

function take(call, form, file, place) {
  const message = {
    context: 'context' in form ? literal(call.arguments[form.context]) : null,
    text: literal(call.arguments[form.text]),
    plural: 'plural' in form ? literal(call.arguments[form.plural]) : undefined
  };
  const problem = wrong(call, form, message);
  if (problem) {
    problems.push(`${place}: ${problem}`);
    return;
  }
  const { context, text, plural = null } = message;
  const key = JSON.stringify([context, text]);
  const known = found.get(key);
  if (known === undefined) {
    found.set(key, { context, text, plural, files: [file] });
  } else if (known.plural !== plural) {
    problems.push(
      `${place}: "${text}" stands elsewhere with another plural, or without one; give one of them a context (trans._p, trans._np)`
    );
  } else if (!known.files.includes(file)) {
    known.files.push(file);
  }
}

for (const path of walk(top).sort()) {
  const file = relative(resolve(top, '..'), path).replaceAll('\\', '/');
  const source = ts.createSourceFile(
    path,
    readFileSync(path, 'utf8'),
    ts.ScriptTarget.Latest,
    true
  );
  const visit = node => {
    if (
      ts.isCallExpression(node) &&
      ts.isPropertyAccessExpression(node.expression) &&
      Object.hasOwn(CALLS, node.expression.name.text)
    ) {
      const at = source.getLineAndCharacterOfPosition(node.getStart(source));
      const form = CALLS[node.expression.name.text];
      take(node, form, file, `${file}:${at.line + 1}`);
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
}

if (problems.length) {
  console.error(problems.join('\n'));
  process.exitCode = 1;
} else {
  console.log(JSON.stringify([...found.values()]));
}
