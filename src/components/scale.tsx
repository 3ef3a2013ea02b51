import { Dialog, ReactWidget } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IJobSummary } from '../model/views';

/** The body of the dialog that asks for a number of nodes within the elastic range. */
export class ScaleBody
  extends ReactWidget
  implements Dialog.IBodyWidget<number>
{
  constructor(
    private readonly _job: IJobSummary,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-Hp-scale');
    this._target = _job.target || _job.nodes_wanted;
  }

  getValue(): number {
    return this._target;
  }

  protected render(): JSX.Element {
    return (
      <ScaleForm
        job={this._job}
        trans={this._trans}
        onChange={target => {
          this._target = target;
        }}
      />
    );
  }

  private _target: number;
}

function ScaleForm(props: {
  job: IJobSummary;
  trans: TranslationBundle;
  onChange: (target: number) => void;
}): JSX.Element {
  const { job, trans } = props;
  // As typed: a first digit may lie outside of the range. The browser refuses what stays there, and the dialog with it.
  const [text, setText] = React.useState(
    String(job.target || job.nodes_wanted)
  );
  const id = React.useId();
  const change = (event: React.ChangeEvent<HTMLInputElement>) => {
    const value = event.target.valueAsNumber;
    setText(event.target.value);
    if (
      Number.isInteger(value) &&
      job.minimum <= value &&
      value <= job.maximum
    ) {
      props.onChange(value);
    }
  };
  const field = {
    min: job.minimum,
    max: job.maximum,
    step: 1,
    value: text,
    required: true,
    onChange: change
  };
  return (
    <>
      <label htmlFor={id}>
        {job.deployment
          ? trans.__(
              'Replicas, from %1 to %2, until the load asks for another number. At present: %3.',
              job.minimum,
              job.maximum,
              job.world_size
            )
          : trans.__(
              'Nodes to run on, from %1 to %2. At present: %3.',
              job.minimum,
              job.maximum,
              job.world_size
            )}
      </label>
      <div className="jp-Hp-row">
        <input id={id} type="range" {...field} />
        <input
          type="number"
          className="jp-mod-styled"
          aria-label={job.deployment ? trans.__('Replicas') : trans.__('Nodes')}
          {...field}
        />
      </div>
    </>
  );
}
