import { readFileSync } from 'fs';
import { join } from 'path';

import { nullTranslator } from '@jupyterlab/translation';

import { CELL, CELL_INDEX, exampleNotebook, LOAD } from '../example';

const README = readFileSync(join(__dirname, '../../README.md'), 'utf8');

it('is the cell of the README', () => {
  expect(README).toContain(LOAD);
  expect(README).toContain(CELL);
});

it('is a whole notebook, with the kernel that Jupyter would choose', () => {
  const kernel = { name: 'python3', display_name: 'Python 3' };
  const trans = nullTranslator.load('jupyter_hyperpod');
  const notebook = exampleNotebook(kernel, trans) as any;
  expect([notebook.nbformat, notebook.nbformat_minor]).toEqual([4, 5]);
  expect(notebook.metadata.kernelspec.name).toBe('python3');
  const code = notebook.cells.filter((cell: any) => cell.cell_type === 'code');
  expect(code.map((cell: any) => cell.source.split('\n')[0])).toEqual([
    LOAD,
    '%%hyperpod --nodes 4 --elastic 2:4 --name first'
  ]);
  expect(notebook.cells[0].source).toContain('`%%hyperpod`');
  expect(notebook.cells[CELL_INDEX].source).toBe(CELL.trimEnd());
  expect((exampleNotebook(null, trans) as any).metadata).toEqual({});
});
