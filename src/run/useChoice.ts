import * as React from 'react';

import { changed } from './choice';
import type { Change, IChoice } from './line';

/** A form's choice, and what changes it. */
export function useChoice(first: IChoice): [IChoice, Change] {
  const [choice, setChoice] = React.useState(first);
  const [range, setRange] = React.useState(first.elastic);
  const change: Change = fields => {
    setChoice(changed(choice, range, fields));
    if (fields.elastic !== undefined) {
      setRange(fields.elastic);
    }
  };
  return [choice, change];
}
