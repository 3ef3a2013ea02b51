import * as React from 'react';

import { Shared } from './context';
import { Button } from './parts';

interface IProps {
  /** The part's name, for people. */
  name: string;
  children?: React.ReactNode;
}

interface IState {
  error: unknown;
}

/** A part of the screen. If it cannot be drawn, it shows an error in its place, and all other parts stay. */
export class Part extends React.Component<IProps, IState> {
  static contextType = Shared;

  static getDerivedStateFromError(error: unknown): IState {
    return { error: error ?? new Error() };
  }

  declare context: React.ContextType<typeof Shared>;

  state: IState = { error: null };

  render(): React.ReactNode {
    const { error } = this.state;
    if (error === null) {
      return this.props.children;
    }
    const trans = this.context!.trans;
    const reason = error instanceof Error ? error.message : String(error);
    return (
      <div className="jp-Hp-broken" role="status" title={reason}>
        <span>
          {trans.__(
            '%1 cannot be shown because of an error in this page. Jobs are not affected.',
            this.props.name
          )}
        </span>
        <Button onClick={() => this.setState({ error: null })}>
          {trans.__('Show again')}
        </Button>
      </div>
    );
  }
}
