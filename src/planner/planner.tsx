import * as React from 'react';

import { ApiError, IPlan, IPlanRequest, ISheet } from '../api';
import { Part } from '../components/boundary';
import { useShared, useTopics } from '../components/context';
import { Button } from '../components/parts';
import { Connection } from '../sidebar/sidebar';
import { FIRST, IScale, NOTCHES, notchOf, scales, valueAt } from './scales';

/** A moving slider sends its request after it has rested for this time. */
const REST_MS = 120;

/** The planner: sliders beside the server's answer. */
export function Planner(): JSX.Element {
  const { trans } = useShared();
  const [request, setRequest] = React.useState<IPlanRequest>(FIRST);
  const { plan, problem, simulate, simulating, simulated } = usePlan(request);
  return (
    <>
      <Connection />
      <div className="jp-Hp-planner-columns">
        <form
          className="jp-Hp-planner-form"
          aria-label={trans.__('Figures of the plan')}
          onSubmit={event => event.preventDefault()}
        >
          {scales(trans).map(scale => (
            <Slider
              key={scale.name}
              scale={scale}
              value={request[scale.name]}
              onChange={value =>
                setRequest({ ...request, [scale.name]: value })
              }
            />
          ))}
          <Convention
            value={request.convention}
            onChange={convention => setRequest({ ...request, convention })}
          />
          <Button
            primary
            disabled={!plan || simulating || simulated}
            onClick={simulate}
          >
            {simulating ? trans.__('Simulating…') : trans.__('Simulate')}
          </Button>
        </form>
        <div className="jp-Hp-planner-answer">
          {problem && (
            <p className="jp-Hp-banner" role="status">
              {problem}
            </p>
          )}
          {plan && (
            <Part name={trans.__('The plan')}>
              <Answer plan={plan} outdated={problem !== ''} />
            </Part>
          )}
        </div>
      </div>
    </>
  );
}

/** The server's answer to the newest request; outdated answers are not shown. */
function usePlan(request: IPlanRequest) {
  const { model } = useShared();
  useTopics('connection');
  const online = model.connection === 'online';
  const [plan, setPlan] = React.useState<IPlan | null>(null);
  const [problem, setProblem] = React.useState('');
  const [simulated, setSimulated] = React.useState(false);
  const [simulating, setSimulating] = React.useState(false);
  const turn = React.useRef(0);
  const ask = React.useCallback(
    async (wanted: IPlanRequest) => {
      const mine = ++turn.current;
      setSimulating(wanted.simulate === true); // takes seconds, so only one at a time
      try {
        const found = await model.api.plan(wanted);
        if (mine === turn.current) {
          setPlan(found);
          setProblem('');
          setSimulated(wanted.simulate === true);
        }
      } catch (error) {
        if (mine === turn.current && error instanceof ApiError) {
          setProblem(error.message);
        }
      } finally {
        if (mine === turn.current) {
          setSimulating(false);
        }
      }
    },
    [model]
  );
  React.useEffect(() => {
    if (online) {
      const timer = setTimeout(() => void ask(request), REST_MS);
      return () => clearTimeout(timer);
    }
  }, [online, ask, request]);
  React.useEffect(() => {
    turn.current++; // requests in progress are out of date
    setSimulating(false);
  }, [request]);
  const simulate = () => ask({ ...request, simulate: true });
  return { plan, problem, simulate, simulating, simulated };
}

function Slider(props: {
  scale: IScale;
  value: number;
  onChange: (value: number) => void;
}): JSX.Element {
  const { scale, value } = props;
  const id = React.useId();
  return (
    <div className="jp-Hp-slider">
      <label htmlFor={id} className="jp-Hp-label">
        {scale.label}
      </label>
      <span className="jp-Hp-strong" aria-hidden>
        {scale.format(value)}
      </span>
      <input
        id={id}
        type="range"
        min={0}
        max={NOTCHES}
        value={notchOf(scale, value)}
        aria-valuetext={scale.format(value)}
        onChange={event =>
          props.onChange(valueAt(scale, event.target.valueAsNumber))
        }
      />
    </div>
  );
}

function Convention(props: {
  value: string;
  onChange: (value: string) => void;
}): JSX.Element {
  const { trans } = useShared();
  const id = React.useId();
  return (
    <div className="jp-Hp-slider">
      <label htmlFor={id} className="jp-Hp-label">
        {trans.__('A failure during a repair')}
      </label>
      <select
        id={id}
        className="jp-Hp-select"
        value={props.value}
        onChange={event => props.onChange(event.target.value)}
      >
        <option value="productive">{trans.__('does not happen')}</option>
        <option value="restart">{trans.__('starts it again')}</option>
        <option value="serial">{trans.__('adds another')}</option>
      </select>
    </div>
  );
}

function Answer(props: { plan: IPlan; outdated: boolean }): JSX.Element {
  const { plan, sheets, picture } = props.plan;
  return (
    <div className="jp-Hp-plan" data-outdated={props.outdated || undefined}>
      <div role="status">
        {plan.title.map((line, index) => (
          <p key={index} className={index ? 'jp-Hp-quiet' : 'jp-Hp-strong'}>
            {line}
          </p>
        ))}
      </div>
      <Picture svg={picture} />
      {sheets.map((sheet, index) => (
        <Sheet key={index} sheet={sheet} />
      ))}
      {plan.lines.map((line, index) => (
        <p key={index} className={index ? 'jp-Hp-quiet' : undefined}>
          {line}
        </p>
      ))}
    </div>
  );
}

/** An inline picture, which takes the colours of the theme, as an image could not. */
function Picture({ svg }: { svg: string }): JSX.Element {
  const host = React.useRef<HTMLDivElement>(null);
  React.useEffect(() => {
    const read = new DOMParser().parseFromString(svg, 'image/svg+xml');
    if (read.documentElement.nodeName === 'svg') {
      host.current?.replaceChildren(
        document.importNode(read.documentElement, true)
      );
    }
  }, [svg]);
  return <div ref={host} className="jp-Hp-picture" />;
}

function Sheet({ sheet }: { sheet: ISheet }): JSX.Element {
  const side = (column: number) =>
    sheet.headers[column]?.startsWith('>') ? 'right' : 'left';
  return (
    <table className="jp-Hp-sheet">
      <thead>
        <tr>
          {sheet.headers.map((header, column) => (
            <th key={column} data-side={side(column)} scope="col">
              {header.replace(/^>/, '')}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {sheet.rows.map((row, index) => (
          <tr key={index}>
            {row.map((cell, column) => (
              <td
                key={column}
                data-side={side(column)}
                data-tone={cell.tone || undefined}
              >
                {cell.text}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
