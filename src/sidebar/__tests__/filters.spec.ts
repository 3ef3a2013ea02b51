import { node } from '../../__tests__/page';
import { NameOrder } from '../filters';

describe('nodes by name', () => {
  const names = (order: NameOrder, nodes: ReturnType<typeof node>[]) =>
    order.of(nodes).map(one => `${one.node} ${one.state}`);

  it('are the present ones, also where only a state has changed', () => {
    const order = new NameOrder();
    const nodes = [node(10), node(2), node(1)];
    expect(names(order, nodes)).toEqual([
      'node-1 idle',
      'node-2 idle',
      'node-10 idle'
    ]);
    nodes[1] = node(2, { state: 'busy' });
    expect(names(order, nodes)[1]).toBe('node-2 busy');
  });

  it('are sorted again where one has come, has gone or has another name', () => {
    const order = new NameOrder();
    names(order, [node(3), node(1)]);
    expect(names(order, [node(3), node(2)])[0]).toBe('node-2 idle');
    expect(names(order, [node(3), node(2), node(1)])[0]).toBe('node-1 idle');
    expect(names(order, [node(2)])).toEqual(['node-2 idle']);
  });
});
