import { Elements } from '../grid';

describe('the elements of rows', () => {
  it('stay with the runs that stay, and are used again for those that come', () => {
    const elements = new Elements();
    const [a, b, c] = elements.keys(['a', 'b', 'c'], undefined);
    const after = elements.keys(['d', 'b', 'e'], undefined);
    expect(after[1]).toBe(b);
    expect([after[0], after[2]]).toEqual([a, c]);
    expect(elements.keys(['d', 'b', 'e'], undefined)).toEqual(after);
    expect(elements.keys(['e'], undefined)).toEqual([after[2]]);
  });

  it('draw no other run where the focus is', () => {
    const elements = new Elements();
    const [a, b] = elements.keys(['a', 'b'], 'a');
    const [c, d] = elements.keys(['c', 'd'], 'a');
    expect(c).toBe(b);
    expect([a, b]).not.toContain(d);
  });
});
