import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IAccount } from '../api';
import { Chart, IMark } from '../compare/chart';
import { csv, ICurves, IView, lines, WHOLE } from '../compare/curves';
import { CsvButton, useSomeCurves } from '../compare/saving';
import { ViewChoice } from '../compare/view';
import { useShared } from '../components/context';
import { causeLabel } from '../components/incidents';
import { stepAt } from '../derive';
import { formatCount, formatDuration } from '../format';
import type { IJobView } from '../model/views';

const NONE: ReadonlySet<number> = new Set();

/** One picture: values of the account by their names there and for people. */
export interface IPicture {
  name: string;
  values: readonly (readonly [string, string])[];
  stepped?: boolean;
  said?: (value: number) => string;
}

/** Every value that a job has logged, by step or time; of a deployment its requests, latencies and replicas. */
export function Curves(props: {
  job: IJobView;
  account: IAccount;
}): JSX.Element | null {
  const { job, account } = props;
  const { trans } = useShared();
  const serves = job.deployment !== null;
  const [view, setView] = React.useState({
    ...WHOLE,
    axis: serves ? ('time' as const) : WHOLE.axis
  });
  const pictures = picturesOf(account, serves, trans);
  const [shown, others] = useSomeCurves(pictures);
  if (pictures.length === 0) {
    return null;
  }
  return (
    <section className="jp-Hp-curves">
      <div className="jp-Hp-chartbar">
        <h3 className="jp-Hp-label">{trans.__('Curves')}</h3>
        <ViewChoice
          view={view}
          onChange={setView}
          only={serves ? 'time' : undefined}
        />
        <span className="jp-Hp-actions">
          <CsvButton
            name={job.id}
            text={() => csv(account)}
            title={trans.__('Save all values of all curves as a table (CSV)')}
          />
        </span>
      </div>
      <div className="jp-Hp-charts">
        {shown.map(picture => (
          <Picture
            key={picture.name}
            picture={picture}
            account={account}
            incidents={job.incidents.length}
            job={job}
            view={view}
            setView={setView}
          />
        ))}
      </div>
      {others}
    </section>
  );
}

/** Drawn again with a new account, incident or view only: a job's view changes far more often, and a curve is long. */
const Picture = React.memo(
  function Picture(props: {
    picture: IPicture;
    account: IAccount;
    job: IJobView;
    incidents: number;
    view: IView;
    setView: (view: IView) => void;
  }): JSX.Element {
    const { picture, account, job, view, setView } = props;
    const { trans } = useShared();
    return (
      <Chart
        name={picture.name}
        lines={lines(drawn(account, picture), picture.name, view, NONE)}
        names={picture.values.map(([, name]) => name)}
        view={view}
        marks={marksOf(job, trans)}
        onRange={range => setView({ ...view, range })}
        said={picture.said}
        stepped={picture.stepped}
        legend={picture.values.length > 1}
      />
    );
  },
  (before, after) =>
    before.picture.name === after.picture.name &&
    before.account === after.account &&
    before.job.id === after.job.id &&
    before.incidents === after.incidents &&
    before.view === after.view
);

/** What is drawn of an account: of a value that was logged once there is no curve. */
export function picturesOf(
  account: ICurves,
  serves: boolean,
  trans: TranslationBundle
): IPicture[] {
  const there = (name: string) => (account.curves[name]?.[0]?.length ?? 0) > 1;
  if (!serves) {
    return Object.keys(account.curves)
      .filter(there)
      .map(name => ({ name, values: [[name, name]] }));
  }
  const pictures: IPicture[] = [
    {
      name: trans.__('Requests per second'),
      values: [['requests_per_s', trans.__('answered')]],
      said: formatCount
    },
    {
      name: trans.__('Latency'),
      values: [
        ['p50_s', trans.__('median')],
        ['p99_s', trans.__('99 %')]
      ],
      said: formatDuration
    },
    {
      name: trans.__('Replicas'),
      values: [
        ['ready', trans.__('answer')],
        ['target', trans.__('wanted')]
      ],
      stepped: true,
      said: formatCount
    },
    {
      name: trans.__('Waiting requests'),
      values: [['queued', trans.__('waiting')]],
      stepped: true,
      said: formatCount
    }
  ];
  return pictures
    .map(picture => ({
      ...picture,
      values: picture.values.filter(([name]) => there(name))
    }))
    .filter(picture => picture.values.length > 0);
}

/** The curves of a picture, as if each were a run. */
function drawn(account: ICurves, picture: IPicture): ICurves {
  const { name, values } = picture;
  return {
    jobs: values.map(([, said]) => said),
    curves: { [name]: values.map(([value]) => account.curves[value][0]) },
    times_s: { [name]: values.map(([value]) => account.times_s[value][0]) }
  };
}

/** The incidents of a job, where they were. */
export function marksOf(job: IJobView, trans: TranslationBundle): IMark[] {
  const start_s = job.started_s ?? job.submitted_s ?? 0;
  return job.incidents.map(incident => ({
    step: stepAt(job.history, incident.started_s) ?? -1,
    time_s: incident.started_s - start_s,
    text: `${incident.node ?? ''} ${causeLabel(incident.cause, trans)}`.trim()
  }));
}
