import * as React from 'react';

import type { IJobView } from '../model/views';

/** The library of curves is as large as all else that a page loads at its start. */
const LossCurve = React.lazy(() => import('./lossCurve'));

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
  return (
    <React.Suspense fallback={place}>
      <LossCurve {...props} />
    </React.Suspense>
  );
}
