import * as React from 'react';

import type { IJobView } from '../model/views';

/** The library of curves is as large as all else that a page loads at its start. */
const load = () =>
  React.lazy(() =>
    import('./lossCurve').catch((error: unknown) => {
      LossCurve = load(); // else it would be asked for never again
      throw error;
    })
  );
let LossCurve = load();

/** Loss by step, once there are two steps; its place is kept until the curve can be drawn. */
export function LossPlot(props: {
  job: IJobView;
  height: number;
}): JSX.Element | null {
  if (props.job.history.length < 2) {
    return null;
  }
  const place = (
    <div className="jp-Hp-plot" style={{ minHeight: props.height }} />
  );
  const Curve = LossCurve;
  return (
    <React.Suspense fallback={place}>
      <Curve {...props} />
    </React.Suspense>
  );
}
