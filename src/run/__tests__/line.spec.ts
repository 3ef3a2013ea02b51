import {
  hasCode,
  header,
  IChoice,
  joined,
  NOTHING,
  otherMagic,
  part,
  quoted,
  read,
  rewritten,
  split,
  withHeader,
  write
} from '../line';
import { overriding, parameters } from '../parameters';

const FULL: IChoice = {
  backend: 'slurm',
  nodes: 4,
  elastic: '2:8:2',
  name: 'first',
  priority: -5,
  spares: 0,
  queue: 'night',
  python: '/opt/my env/bin/python',
  push: 'a,b',
  pull: 'x',
  schedule: '30 6 * * mon-fri',
  zone: 'Europe/Berlin',
  detach: true,
  slurm: { partition: 'gpu', gres: 'gpu:8' },
  other: "--env 'A=it'\"'\"'s' --log-rule 'my rules.toml'"
};

describe('words', () => {
  it.each([
    ['a  b\tc', ['a', 'b', 'c']],
    [`'a b' "c d"e`, ['a b', 'c de']],
    [`"a \\" \\\\ \\n" 'b\\'`, ['a " \\ \\n', 'b\\']],
    [`a\\ b ''`, ['a b', '']],
    ['', []]
  ])('are those of shlex: %s', (line, words) => {
    expect(split(line)).toEqual(words);
  });

  it('lack an end', () => {
    expect(split(`a 'b`)).toBeNull();
    expect(split('a \\')).toBeNull();
    expect(read(`--name "x`)).toBeNull();
  });

  it.each(['plain', 'a b', "it's", '"', '\\', '', 'a=b c', 'ä', '$x', '#'])(
    'come back through quotes: %s',
    word => {
      expect(split(quoted(word))).toEqual([word]);
    }
  );
});

describe('a line', () => {
  it('is read and written again', () => {
    expect(read(write(FULL))).toEqual(FULL);
    expect(read(write(NOTHING))).toEqual(NOTHING);
    expect(write(NOTHING)).toBe('%%hyperpod');
  });

  it('survives every single option', () => {
    for (const [name, value] of Object.entries(FULL)) {
      const choice = { ...NOTHING, [name]: value };
      expect(read(write(choice))).toEqual(choice);
    }
  });

  it('may join a value with "=", say an option twice, and hold what the form does not know', () => {
    expect(
      read(
        '%%hyperpod --nodes=2 --nodes 3 --push a --push=b,c --hang-timeout 5 --seed 1'
      )
    ).toEqual({
      ...NOTHING,
      nodes: 3,
      push: 'a,b,c',
      other: '--hang-timeout 5 --seed 1'
    });
  });

  it('keeps a value that the form cannot show', () => {
    expect(read('%%hyperpod --nodes {n} --name')).toEqual({
      ...NOTHING,
      other: "--nodes '{n}' --name"
    });
  });

  it('stays as it is, to the letter, where nothing has changed', () => {
    const line = `%%hyperpod   --name "first"  --nodes=4`;
    expect(rewritten(line, read(line)!)).toBe(line);
    expect(rewritten(line, { ...read(line)!, nodes: 5 })).toBe(
      '%%hyperpod --nodes 5 --name first'
    );
  });

  it('stays one line', () => {
    expect(write({ ...NOTHING, other: '--threads 2\n--seed 1' })).toBe(
      '%%hyperpod --threads 2 --seed 1'
    );
  });
});

describe('a cell', () => {
  it('has its header below comments, or none', () => {
    const source = '# about it\n\n%%hyperpod --nodes 2  \nx = 1';
    expect(header(source)).toEqual({
      line: '%%hyperpod --nodes 2',
      start: 12,
      end: 32
    });
    expect(header('x = 1\n%%hyperpod')).toBeNull();
    expect(header('%%hyperpodx')).toBeNull();
    expect(header('')).toBeNull();
  });

  it('gets a header above everything, or in the place of the old one', () => {
    expect(withHeader('x = 1', '%%hyperpod')).toBe('%%hyperpod\nx = 1');
    expect(
      withHeader('# why\n%%hyperpod --nodes 1\nx = 1', '%%hyperpod --nodes 2')
    ).toBe('# why\n%%hyperpod --nodes 2\nx = 1');
    expect(withHeader('%load_ext jupyter_hyperpod\nx = 1', '%%hyperpod')).toBe(
      '%%hyperpod\nx = 1'
    );
  });

  it('names the magic of somebody else', () => {
    expect(otherMagic('# a\n%%time\nx')).toBe('%%time');
    expect(otherMagic('%%hyperpod\nx')).toBe('');
    expect(otherMagic('x = 5 %% 3')).toBe('');
  });

  it('has code for a cluster, or has not', () => {
    expect(hasCode('# only\n%%hyperpod\n\n')).toBe(false);
    expect(hasCode('%hyperpod jobs')).toBe(false);
    expect(hasCode('%load_ext jupyter_hyperpod')).toBe(false);
    expect(hasCode('x = 1')).toBe(true);
  });

  it('is one of several', () => {
    expect(
      joined(
        [
          '%load_ext jupyter_hyperpod',
          'import torch\n',
          '%%hyperpod --nodes 4\nx = 1',
          '%hyperpod jobs',
          '',
          '\ndef f():\n%load_ext jupyter_hyperpod\n    return 2'
        ].map((source, at) => ({ number: at + 1, source })),
        'a.ipynb'
      )
    ).toBe(
      '# %% code cell 2 of a.ipynb\nimport torch\n\n' +
        '# %% code cell 3 of a.ipynb, from line 2\nx = 1\n\n' +
        '# %% code cell 6 of a.ipynb, from line 2\ndef f():\n\n    return 2'
    );
    expect(part('%%hyperpod').code).toBe('');
  });
});

describe('parameters', () => {
  const SOURCE = `# the defaults
lr = 1e-3  # learning rate
steps: int = 60
name = "a # b"  # what it is called
sizes = [1, 2]
nested = {
    "a": 1
}
import os
if lr == 2: pass`;

  it('are the plain assignments', () => {
    expect(parameters(SOURCE)).toEqual([
      { name: 'lr', value: '1e-3', help: 'learning rate' },
      { name: 'steps', value: '60', help: '' },
      { name: 'name', value: '"a # b"', help: 'what it is called' },
      { name: 'sizes', value: '[1, 2]', help: '' }
    ]);
  });

  it('are overridden where they differ', () => {
    expect(overriding(SOURCE, { lr: '1e-3', steps: ' 80 ', name: '' })).toBe(
      'steps = 80'
    );
    expect(overriding(SOURCE, {})).toBe('');
    expect(overriding(SOURCE, { other: '1' })).toBe('');
  });
});
