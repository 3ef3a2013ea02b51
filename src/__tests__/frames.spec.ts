import { frames } from '../derive';

const ERROR = {
  member: 'm',
  node: 'node-1',
  rank: 0,
  type: 'ZeroDivisionError',
  message: 'division by zero'
};

describe('the frames of a notebook that was submitted', () => {
  it('are those of all of its cells, and the last one raised', () => {
    const found = frames({
      ...ERROR,
      traceback: [
        'Traceback (most recent call last):',
        '  File "whole.ipynb, cell 3", line 2, in <module>',
        '    half(0)',
        '  File "whole.ipynb, cell 1", line 5, in half',
        '    return 1 / x',
        'ZeroDivisionError: division by zero'
      ],
      line: 5,
      cell: 1
    });
    expect(found.map(frame => frame.cell)).toEqual([false, true, true, false]);
    expect(found.map(frame => frame.raised)).toEqual([
      false,
      false,
      true,
      false
    ]);
  });
});
