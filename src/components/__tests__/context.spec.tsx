import { Signal } from '@lumino/signaling';
import * as React from 'react';
import { act } from 'react';

import { draw, host, shared } from '../../__tests__/page';
import type { Changed, HyperpodModel } from '../../model/model';
import { InSight, Sight, useTopics } from '../context';

function Count(props: { drawn: () => number }): JSX.Element {
  useTopics('jobs');
  return <>{props.drawn()}</>;
}

describe('a view in a tab', () => {
  it('is drawn again once when it can be seen again, and only if something has changed', () => {
    const changed = new Signal<HyperpodModel, Changed>({} as HyperpodModel);
    const sight = new Sight();
    let count = 0;
    draw(
      <InSight.Provider value={sight}>
        <Count drawn={() => ++count} />
      </InSight.Provider>,
      shared({ changed })
    );
    const tell = () =>
      act(() => {
        changed.emit(new Set(['jobs']));
      });
    const see = (on: boolean) =>
      act(() => {
        sight.on = on;
      });
    tell();
    expect(host.textContent).toBe('2');
    see(false);
    tell();
    tell();
    expect(host.textContent).toBe('2');
    see(true);
    expect(host.textContent).toBe('3');
    see(false);
    see(true);
    expect(host.textContent).toBe('3');
  });
});
