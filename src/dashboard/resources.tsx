import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IResources, Quantity } from '../api';
import { Chart } from '../compare/chart';
import { ILine, IView, WHOLE } from '../compare/curves';
import { RangeChoice } from '../compare/view';
import { Part } from '../components/boundary';
import { useShared } from '../components/context';
import { Lanes } from '../components/lanes';
import { formatBytes } from '../format';
import { TERMINAL_STATES } from '../model/events';
import type { IJobView } from '../model/views';
import { said } from '../said/said';
import { useResources } from './account';
import { marksOf } from './curves';
import { strokes } from './strokes';

/** The nodes of a job over time, and what its processes use there. */
export function Nodes({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const place = React.useRef<HTMLDivElement>(null);
  const { answer, problem } = useResources(job, place);
  return (
    <div className="jp-Hp-whole" ref={place}>
      <Part name={trans.__('The lanes of the nodes')}>
        <Lanes job={job} used={answer} />
      </Part>
      {problem && (
        <p className="jp-Hp-banner" role="status">
          {said(problem, trans)}
        </p>
      )}
      {answer && !job.deployment && (
        <Part name={trans.__('The resources')}>
          <Resources job={job} used={answer} />
        </Part>
      )}
    </div>
  );
}

/** A chart of each quantity, with a line for each node, or what is lowest, in the middle and highest of many. */
export function Resources(props: {
  job: IJobView;
  used: IResources;
}): JSX.Element {
  const { job, used } = props;
  const { trans } = useShared();
  const [view, setView] = React.useState<IView>({ ...WHOLE, axis: 'time' });
  const drawn = charts(used, trans);
  const words: Record<string, string> = {
    lowest: trans.__('lowest'),
    median: trans.__('median'),
    highest: trans.__('highest')
  };
  const names = used.lines.map(name => (used.many ? words[name] : name));
  const start_s = job.started_s ?? job.submitted_s ?? used.start_s;
  return (
    <section className="jp-Hp-curves">
      <div className="jp-Hp-chartbar">
        <h3 className="jp-Hp-label">{trans.__('Resources')}</h3>
        {drawn.length > 0 && (
          <RangeChoice
            view={view}
            onChange={setView}
            name={trans.__('Seconds since the beginning')}
          />
        )}
        {drawn.length > 0 && names.length > 1 && (
          <span className="jp-Hp-lines">
            {names.map((name, at) => (
              <span key={name} data-colour={at}>
                <i />
                {name}
              </span>
            ))}
          </span>
        )}
      </div>
      <p className="jp-Hp-small">{sentences(job, used, trans).join(' ')}</p>
      {drawn.length > 0 && (
        <div className="jp-Hp-charts">
          {drawn.map(({ quantity, name, tell }) => (
            <Chart
              key={quantity}
              name={name}
              lines={lines(used, quantity, used.start_s - start_s)}
              names={names}
              view={view}
              marks={marksOf(job, trans)}
              onRange={range => setView({ ...view, range })}
              said={tell}
              fromZero
            />
          ))}
        </div>
      )}
    </section>
  );
}

/** What is drawn: the name says what a node may use at most, where that is known. */
function charts(
  used: IResources,
  trans: TranslationBundle
): { quantity: Quantity; name: string; tell: (value: number) => string }[] {
  const { cores, limit, gpus, gpu_limit } = used.limits;
  const percent = (value: number) => `${+value.toFixed(1)} %`;
  const rate = (value: number) => `${formatBytes(value)}/s`;
  const all = {
    cpu: [trans._n('CPU, of %1 core', 'CPU, of %1 cores', cores), percent],
    memory: [
      limit
        ? trans.__('Memory, of %1', formatBytes(limit))
        : trans.__('Memory'),
      formatBytes
    ],
    gpu: [trans._n('GPU, of %1', 'GPUs, of %1', gpus), percent],
    gpu_memory: [
      gpu_limit
        ? trans.__('GPU memory, of %1', formatBytes(gpu_limit))
        : trans.__('GPU memory'),
      formatBytes
    ],
    received: [trans.__('Network, received'), rate],
    sent: [trans.__('Network, sent'), rate]
  } as const;
  return (Object.keys(all) as Quantity[])
    .filter(quantity => used.curves[quantity])
    .map(quantity => {
      const [name, tell] = all[quantity];
      return { quantity, name, tell };
    });
}

/** What the lines stand for, or why there are none. */
export function sentences(
  job: IJobView,
  used: IResources,
  trans: TranslationBundle
): string[] {
  const { curves, many, left_out, nodes } = used;
  if (nodes === 0) {
    return [
      TERMINAL_STATES.has(job.state)
        ? trans.__(
            'No samples: the job was too short, its nodes run no Linux, or it ran before nodes were sampled.'
          )
        : trans.__('No samples so far: the first one takes some seconds.')
    ];
  }
  const told = [
    curves.received
      ? trans.__(
          'CPU and memory are those of the job’s processes on each node, the network is that of the whole node.'
        )
      : trans.__(
          'CPU and memory are those of the job’s processes on each node. The network is not sampled, since these nodes share that of one machine.'
        )
  ];
  if (many) {
    told.push(
      trans.__(
        'Of %1 nodes, the lines are the lowest, the median and the highest value at each time.',
        nodes - left_out
      )
    );
  }
  if (left_out) {
    told.push(
      trans._n(
        '%1 more node is left out.',
        '%1 more nodes are left out.',
        left_out
      )
    );
  }
  return told;
}

/** The lines of a quantity; ``shift_s`` is added to their times. */
export function lines(
  used: IResources,
  quantity: Quantity,
  shift_s: number
): ILine[] {
  return (used.curves[quantity] ?? []).flatMap((values, run) => {
    const there = values.flatMap((value, at) => (value === null ? [] : at));
    const begins = strokes(there.map(at => used.times_s[at]));
    const points = there.map((at, order) => {
      const y = values[at]!;
      const point = { x: used.times_s[at] + shift_s, y, low: y, high: y };
      return order > 0 && begins[order] ? { ...point, apart: true } : point;
    });
    return points.length ? [{ run, points, smooth: [] }] : [];
  });
}
