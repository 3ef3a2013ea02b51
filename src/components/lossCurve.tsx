import * as React from 'react';
import uPlot from 'uplot';

import { stepAt } from '../derive';
import { formatInteger, formatLoss } from '../format';
import type { IJobView } from '../model/views';
import { useShared } from './context';
import { Reader } from './reader';

/** High contrast: only the system's own colours are allowed. */
const FORCED = '(forced-colors: active)';

/** The band at the bottom in which the number of members is drawn. */
const BAND = 0.16;

/** A moment marked in the curve. */
interface IMark {
  step: number;
  open: boolean;
}

/** Loss by step, recoveries as marks, the number of members as a band along the bottom. */
export default function LossCurve(props: {
  job: IJobView;
  height: number;
}): JSX.Element | null {
  const { job, height } = props;
  const { trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const readout = React.useRef<HTMLDivElement>(null);
  const plot = React.useRef<uPlot | null>(null);
  const marks = React.useRef<IMark[]>([]);
  const enough = job.history.length > 1;
  // The view grows in place: this key changes when it looks different.
  const open = job.incidents.filter(incident => incident.resumed_s === null);
  const drawn = `${job.step} ${job.incidents.length} ${open.length} ${job.history.length}`;

  marks.current = job.incidents.flatMap(incident => {
    const step = stepAt(job.history, incident.started_s);
    return step === null ? [] : [{ step, open: incident.resumed_s === null }];
  });

  const tell = (at: number): string => {
    const point = job.history[Math.min(at, job.history.length - 1)];
    const step = `${trans.__('step')} ${formatInteger(point[0])}`;
    return `${step} · ${formatLoss(point[1] ?? null)} · ${point[3]} ${trans.__('members')}`;
  };
  const told = React.useRef(tell);
  told.current = tell;
  const [read, setRead] = React.useState<number | null>(null);
  const onRead = (at: number | null) => {
    setRead(at);
    if (at === null) {
      plot.current?.setCursor({ left: -10, top: -10 });
    }
  };

  React.useEffect(() => {
    const host = box.current;
    if (!host || !enough) {
      return;
    }
    const onCursor = (chart: uPlot) => {
      if (readout.current) {
        const at = chart.cursor.idx;
        readout.current.textContent =
          typeof at === 'number' ? told.current(at) : '';
      }
    };
    const options = plotOptions(host.clientWidth, height, marks, onCursor);
    const chart = new uPlot(options, [[], [], []], host);
    plot.current = chart;
    const resize = new ResizeObserver(() => {
      if (host.clientWidth > 0) {
        chart.setSize({ width: host.clientWidth, height });
      }
    });
    resize.observe(host);
    const theme = new MutationObserver(() => chart.redraw(false, true));
    theme.observe(document.body, {
      attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light']
    });
    const forced = window.matchMedia?.(FORCED);
    const redraw = () => chart.redraw(false, true);
    forced?.addEventListener('change', redraw);
    return () => {
      forced?.removeEventListener('change', redraw);
      resize.disconnect();
      theme.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [enough, height]);

  React.useEffect(() => {
    plot.current?.setData([
      job.history.map(point => point[0]),
      job.history.map(point => point[1]),
      job.history.map(point => point[3])
    ]);
  }, [job.history, drawn, enough]);

  React.useEffect(() => {
    if (read !== null && plot.current) {
      const [step] = job.history[Math.min(read, job.history.length - 1)];
      plot.current.setCursor({
        left: plot.current.valToPos(step, 'x'),
        top: 0
      });
    }
  }, [read, job.history, drawn, enough]);

  if (!enough) {
    return null;
  }
  const last = formatLoss(job.loss, job.step);
  return (
    <div className="jp-Hp-plot">
      <div className="jp-Hp-plot-title">
        <span>{trans.__('Loss')}</span>
        <span className="jp-Hp-readout" ref={readout} aria-hidden />
      </div>
      <div className="jp-Hp-plotbox">
        <div
          ref={box}
          role="img"
          aria-label={trans.__(
            'Loss by step: %1 at step %2, %3',
            last,
            job.step,
            trans._n(
              '%1 incident marked',
              '%1 incidents marked',
              job.incidents.length
            )
          )}
          style={{ height }}
        />
        <Reader
          name={trans.__('Loss')}
          count={job.history.length}
          at={read}
          tell={tell}
          onRead={onRead}
        />
      </div>
    </div>
  );
}

/** The value of one of Lab's theme variables, for a canvas. */
function themed(name: string): string {
  if (window.matchMedia?.(FORCED).matches) {
    return name.includes('brand')
      ? 'Highlight'
      : name.includes('border')
        ? 'GrayText'
        : 'CanvasText';
  }
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}

function plotOptions(
  width: number,
  height: number,
  marks: React.MutableRefObject<IMark[]>,
  onCursor: (chart: uPlot) => void
): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: () => themed('--jp-ui-font-color2'),
    font: `10px ${themed('--jp-ui-font-family')}`,
    grid: { stroke: () => themed('--jp-border-color2'), width: 1 },
    ticks: { show: false }
  };
  return {
    width: Math.max(width, 50),
    height,
    padding: [10, 20, 0, 0], // half of the last label is beside the curve
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 7 }
    },
    scales: {
      x: { time: false },
      y: { range: (_, low, high) => lossRange(low, high) },
      world: { range: (_, __, high) => [0, Math.max(1, high) / BAND] }
    },
    axes: [
      {
        ...axis,
        size: 24,
        gap: 6,
        grid: { show: false },
        space: 64,
        incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5],
        values: (_, splits) => splits.map(formatInteger)
      },
      {
        ...axis,
        size: 38,
        gap: 6,
        space: 32,
        values: (_, splits) => splits.map(value => `${+value.toFixed(4)}`)
      }
    ],
    series: [
      {},
      {
        stroke: () => themed('--jp-brand-color1'),
        width: 1.5,
        points: { show: false }
      },
      {
        scale: 'world',
        paths: uPlot.paths.stepped?.({ align: 1 }),
        stroke: () => themed('--jp-border-color1'),
        fill: () =>
          `color-mix(in srgb, ${themed('--jp-border-color1')} 30%, transparent)`,
        width: 1,
        points: { show: false }
      }
    ],
    hooks: {
      draw: [chart => drawMarks(chart, marks.current)],
      setCursor: [onCursor]
    }
  };
}

/** The losses' range, lifted above the band of members. */
function lossRange(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) {
    return [0, 1];
  }
  const span = high - low || Math.abs(high) || 1;
  return [low - span * (BAND + 0.06), high + span * 0.06];
}

function drawMarks(chart: uPlot, marks: readonly IMark[]): void {
  const { ctx, bbox } = chart;
  const pixel = devicePixelRatio;
  ctx.save();
  for (const mark of marks) {
    const x = Math.round(chart.valToPos(mark.step, 'x', true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width + 1) {
      continue;
    }
    const colour = themed(mark.open ? '--jp-error-color1' : '--jp-warn-color1');
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = pixel;
    ctx.setLineDash([3 * pixel, 3 * pixel]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.beginPath();
    ctx.moveTo(x - 4 * pixel, bbox.top - 7 * pixel);
    ctx.lineTo(x + 4 * pixel, bbox.top - 7 * pixel);
    ctx.lineTo(x, bbox.top);
    ctx.closePath();
    ctx.fill();
  }
  ctx.restore();
}
