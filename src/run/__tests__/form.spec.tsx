import * as React from 'react';
import { act } from 'react';

import {
  click,
  draw,
  fill,
  find,
  host,
  node,
  shared
} from '../../__tests__/page';
import { newClusterView } from '../../model/views';
import { Form, IAnswer, IQuestion } from '../form';
import { NOTHING } from '../line';

const LOCAL = {
  name: 'local',
  title: 'the local cluster',
  owns_nodes: true,
  missing: '',
  problem: '',
  states: {}
};
const SLURM = {
  ...LOCAL,
  name: 'slurm',
  title: 'SLURM',
  owns_nodes: false,
  states: { idle: 3, down: 1 }
};

let answer: IAnswer;

async function show(fields: Partial<IQuestion> = {}): Promise<void> {
  const question: IQuestion = {
    whole: false,
    count: 1,
    notebook: 'notes',
    parameters: [],
    line: '',
    first: { ...NOTHING, nodes: 2 },
    about: Promise.resolve({
      python: '/env/bin/python',
      version: '3.11.2',
      backend: 'local'
    }),
    backends: Promise.resolve([LOCAL, SLURM]),
    mounts: Promise.resolve([]),
    interpreters: [],
    dryRun: async () => ({ ok: true, text: 'would submit' }),
    ...fields
  };
  const cluster = {
    ...newClusterView(),
    state: 'ready',
    nodes: [node(0), node(1, { state: 'busy' })]
  };
  draw(
    <Form question={question} onChange={found => (answer = found)} />,
    shared({ cluster })
  );
  await act(async () => undefined);
}

function labelled(label: string): HTMLInputElement {
  const found = [...host.querySelectorAll('label')].find(
    one => one.textContent === label
  );
  return document.getElementById(found!.htmlFor) as HTMLInputElement;
}

function type(label: string, value: string): void {
  fill(labelled(label), value);
}

it('writes the line while a person types', async () => {
  await show();
  expect(host.textContent).toContain('1 of 2 nodes are free now');
  expect(host.textContent).toContain('waits until nodes are free');
  type('Nodes', '4');
  expect(host.textContent).toContain('The cluster is too small');
  await act(async () => labelled('Elastic').click());
  type('At least', '1');
  type('Name', 'x');
  expect(answer.line).toBe('%%hyperpod --nodes 4 --elastic 1:4 --name x');
  expect(host.textContent).toContain('begins on fewer nodes');
  expect(answer.local).toBe(true);
});

it('widens the range that a person chose by the number that stands there, not by its first digits', async () => {
  const line = '%%hyperpod --nodes 4 --elastic 2:4';
  await show({ line, first: { ...NOTHING, nodes: 4, elastic: '2:4' } });
  type('Nodes', '1');
  expect(answer.line).toContain('--nodes 1 --elastic 1:4');
  type('Nodes', '14');
  expect(answer.line).toContain('--nodes 14 --elastic 2:14');
  type('Nodes', '40');
  type('Nodes', '4');
  expect(answer.line).toBe(line);
  type('At most', '8');
  type('Nodes', '10');
  type('Nodes', '3');
  expect(answer.line).toContain('--nodes 3 --elastic 2:8');
});

it('asks for the number of nodes where it was taken away, and only there', async () => {
  await show();
  type('Nodes', '');
  // Where something has this class, the dialog lets nobody accept.
  expect(find('.jp-mod-error').textContent).toContain('a whole number from 1');
  type('Nodes', '3');
  expect(host.querySelector('.jp-mod-error')).toBeNull();
});

it('runs a cell whose line leaves the number of nodes out', async () => {
  const line = '%%hyperpod --elastic 2:4';
  await show({ line, first: { ...NOTHING, elastic: '2:4' } });
  expect(host.querySelector('.jp-mod-error')).toBeNull();
  expect(answer.line).toBe(line);
});

it('says what is wrong beside the field', async () => {
  await show();
  type('Name', 'a b');
  expect(find('.jp-mod-error').textContent).toContain('1 to 40 letters');
  expect(labelled('Name').getAttribute('aria-invalid')).toBe('true');
  const told = labelled('Name').getAttribute('aria-describedby')!;
  expect(document.getElementById(told)!.textContent).toContain('1 to 40');
});

it('leaves a line as it is where nothing has changed', async () => {
  const line = `%%hyperpod  --nodes=2 --seed 1`;
  await show({ line, first: { ...NOTHING, nodes: 2, other: '--seed 1' } });
  expect(answer.line).toBe(line);
  // What is folded away is shown where the line has it.
  expect(find('details').hasAttribute('open')).toBe(true);
});

it('keeps the cell for times of the clock, in the time zone of the browser', async () => {
  await show();
  type('Schedule', '30 6 * * mon-fri');
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  expect(answer.line).toBe(
    `%%hyperpod --nodes 2 --schedule '30 6 * * mon-fri' --time-zone ${zone}`
  );
  type('Time zone', 'Europe/Berlin');
  expect(answer.line).toContain('--time-zone Europe/Berlin');
  type('Schedule', '');
  expect(answer.line).toBe('%%hyperpod --nodes 2');
});

it('knows a scheduler with its options', async () => {
  await show();
  type('Cluster', 'slurm');
  expect(host.textContent).toContain('3 idle, 1 down');
  type('Partition', 'gpu');
  expect(answer.line).toBe(
    '%%hyperpod --backend slurm --nodes 2 --slurm partition=gpu'
  );
  expect(answer.local).toBe(false);
  type('Cluster', 'local');
  expect(answer.line).toBe('%%hyperpod --nodes 2');
});

it('says why a backend cannot be used', async () => {
  const missing = { ...SLURM, missing: '`sbatch` not found in PATH' };
  await show({ backends: Promise.resolve([LOCAL, missing]) });
  const option = find('option[value="slurm"]') as HTMLOptionElement;
  expect(option.disabled).toBe(true);
});

it('refuses a kernel that has no magics', async () => {
  await show({ about: Promise.reject(new Error("No module named 'x'")) });
  expect(find('[role="alert"]').textContent).toContain("No module named 'x'");
  expect(find('[role="alert"]').classList).toContain('jp-mod-error');
});

it('shows a dry run until the line changes', async () => {
  await show();
  await click('.jp-Hp-line button');
  expect(find('.jp-Hp-said pre').textContent).toBe('would submit');
  expect(find('.jp-Hp-said').dataset.outdated).toBeUndefined();
  // The line stays in sight; what would stay with it would cover the fields.
  expect(host.querySelector('.jp-Hp-line .jp-Hp-said')).toBeNull();
  type('Nodes', '3');
  expect(find('.jp-Hp-said').dataset.outdated).toBe('true');
});

it('asks for the parameters of a notebook', async () => {
  const parameters = [{ name: 'lr', value: '1e-3', help: 'learning rate' }];
  await show({ whole: true, count: 3, parameters });
  expect(labelled('lr').value).toBe('1e-3');
  type('lr', '1e-4');
  expect(answer.values).toEqual({ lr: '1e-4' });
});

it('says why a cluster cannot be chosen here', async () => {
  const missing = '`sbatch` not found in PATH';
  const backends = Promise.resolve([LOCAL, { ...SLURM, missing }]);
  await show({ backends });
  const option = host.querySelector<HTMLOptionElement>('option[value=slurm]')!;
  expect(option.disabled).toBe(true);
  expect(option.textContent).toBe('SLURM (not available here)');
  expect(find('details summary').textContent).toBe('Not available here: SLURM');
  expect(host.textContent).toContain(`SLURM: ${missing}`);
  expect(host.querySelector('.jp-mod-error')).toBeNull();
});

it('says nothing of clusters that can all be chosen', async () => {
  await show();
  expect(host.textContent).not.toContain('Not available here');
});
