import { LabIcon } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { formatInteger, labelOf, oncePer } from '../format';
import type { JobState } from '../model/facts';
import type { IJobSummary, TrendPoint } from '../model/views';

/** The word for a state; states of a newer server are shown as they are. */
export function stateLabel(state: string, trans: TranslationBundle): string {
  return labelOf(stateLabels(trans), state);
}

const stateLabels = oncePer((trans): Record<string, string> => ({
  pending: trans.__('Pending'),
  starting: trans.__('Starting'),
  running: trans.__('Running'),
  recovering: trans.__('Recovering'),
  succeeded: trans.__('Succeeded'),
  failed: trans.__('Failed'),
  stopping: trans.__('Stopping'),
  stopped: trans.__('Stopped'),
  pruned: trans.__('Pruned'),
  idle: trans.__('Idle'),
  busy: trans.__('Busy'),
  drained: trans.__('Drained'),
  partitioned: trans.__('Cut off'),
  lost: trans.__('Lost')
}));

/** The word for the state of a mount. */
export function mountLabel(state: string, trans: TranslationBundle): string {
  const labels: Record<string, string> = {
    ready: trans.__('Ready'),
    remote: trans.__('Ready'),
    detached: trans.__('Not mounted'),
    hangs: trans.__('Hangs'),
    broken: trans.__('Broken')
  };
  return labelOf(labels, state);
}

export function StateChip(props: {
  state: string;
  trans: TranslationBundle;
  title?: string;
  /** Replaces the word of the state. */
  label?: string;
}): JSX.Element {
  return (
    <span
      className="jp-Hp-chip"
      data-state={props.state}
      title={props.title || undefined}
    >
      <span className="jp-Hp-dot" data-state={props.state} aria-hidden />
      {props.label ?? stateLabel(props.state, props.trans)}
    </span>
  );
}

export function ProgressBar(props: {
  value: number | null;
  state: JobState;
  label: string;
}): JSX.Element {
  const percent = props.value === null ? null : props.value * 100;
  return (
    <div
      className="jp-Hp-progress"
      role="progressbar"
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent === null ? undefined : Math.floor(percent)}
      data-state={props.state}
      data-unknown={percent === null || undefined}
    >
      <div style={{ '--hp-part': props.value ?? 0 } as React.CSSProperties} />
    </div>
  );
}

/** The step of a job, and how many steps it has, as `3 / 10`. */
function stepText(job: IJobSummary): string {
  const total = job.session?.total_steps;
  return total && job.step <= total
    ? `${formatInteger(job.step)} / ${formatInteger(total)}`
    : formatInteger(job.step);
}

/** The step of a job, and which session of the cell it is in, where that is not the first. */
export function placeText(job: IJobSummary, trans: TranslationBundle): string {
  const steps = stepText(job);
  return job.session_number > 1
    ? trans.__('session %1 · %2', job.session_number, steps)
    : steps;
}

/** The same with the word "step". */
export function stepOf(job: IJobSummary, trans: TranslationBundle): string {
  const steps = stepText(job);
  return job.session_number > 1
    ? trans.__('session %1 · step %2', job.session_number, steps)
    : trans.__('step %1', steps);
}

const SPARK_WIDTH = 96;
const SPARK_HEIGHT = 20;

/** The loss as a small curve without axes; decorative, since the number is beside it. */
export const Sparkline = React.memo(function Sparkline(props: {
  history: readonly TrendPoint[];
  /** Distinguishes a history that grew in place from the one drawn before. */
  step: number;
}): JSX.Element {
  return (
    <svg
      className="jp-Hp-spark"
      viewBox={`0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden
    >
      <path d={sparkPath(props.history)} />
    </svg>
  );
});

/** SVG path of a history scaled into the sparkline's box; empty where there is nothing to draw. */
export function sparkPath(history: readonly TrendPoint[]): string {
  const points = history.filter(point => point[1] !== null);
  if (points.length < 2) {
    return '';
  }
  const losses = points.map(point => point[1] as number);
  const low = Math.min(...losses);
  const span = Math.max(...losses) - low || 1;
  const first = points[0][0];
  const steps = points[points.length - 1][0] - first || 1;
  const inner = SPARK_HEIGHT - 3;
  return points
    .map((point, index) => {
      const x = ((point[0] - first) / steps) * SPARK_WIDTH;
      const y = 1.5 + inner - ((losses[index] - low) / span) * inner;
      return `${index ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    })
    .join('');
}

export function Button(props: {
  onClick: () => unknown;
  children?: React.ReactNode;
  icon?: LabIcon;
  title?: string;
  danger?: boolean;
  primary?: boolean;
  disabled?: boolean;
  /** Whether a switch is on. */
  pressed?: boolean;
}): JSX.Element {
  const [busy, setBusy] = React.useState(false);
  const mounted = React.useRef(true);
  React.useEffect(() => {
    mounted.current = true;
    return () => {
      mounted.current = false;
    };
  }, []);
  const onClick = async (event: React.MouseEvent) => {
    event.stopPropagation();
    // While it waits it is not `disabled`, which would take the focus from it.
    if (busy) {
      return;
    }
    setBusy(true);
    try {
      await props.onClick();
    } finally {
      if (mounted.current) {
        setBusy(false);
      }
    }
  };
  return (
    <button
      type="button"
      className="jp-Hp-button"
      data-danger={props.danger || undefined}
      data-primary={props.primary || undefined}
      data-icon={!props.children || undefined}
      title={props.title}
      aria-label={props.children ? undefined : props.title}
      aria-busy={busy || undefined}
      aria-pressed={props.pressed}
      aria-disabled={busy || undefined}
      disabled={props.disabled}
      onClick={onClick}
    >
      {props.icon && <props.icon.react tag="span" elementSize="small" />}
      {props.children}
    </button>
  );
}

/** A section with a heading that folds it. */
export function Section(props: {
  title: string;
  count?: React.ReactNode;
  actions?: React.ReactNode;
  open?: boolean;
  children: React.ReactNode;
}): JSX.Element {
  const [open, setOpen] = React.useState(props.open ?? true);
  const id = React.useId();
  return (
    <section className="jp-Hp-section" data-open={open || undefined}>
      <header>
        <h3>
          <button
            type="button"
            aria-expanded={open}
            aria-controls={id}
            onClick={() => setOpen(!open)}
          >
            <span className="jp-Hp-caret" aria-hidden />
            {props.title}
          </button>
        </h3>
        {props.count !== undefined && (
          <span className="jp-Hp-count">{props.count}</span>
        )}
        <span className="jp-Hp-actions">{props.actions}</span>
      </header>
      <div id={id} hidden={!open}>
        {open && props.children}
      </div>
    </section>
  );
}

/** A figure with its name above it. */
export function Stat(props: {
  name: string;
  title?: string;
  children: React.ReactNode;
}): JSX.Element {
  return (
    <div className="jp-Hp-stat" title={props.title}>
      <span className="jp-Hp-label">{props.name}</span>
      <span className="jp-Hp-value">{props.children}</span>
    </div>
  );
}
