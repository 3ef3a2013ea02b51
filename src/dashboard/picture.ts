/** A picture of a job for others: name, figures, the loss with its incidents, and the lanes of the nodes. Pure. */

import { lanes } from '../derive';
import { formatClock, formatInteger, formatLoss } from '../format';
import type { IJobView } from '../model/views';

/** As large as pages show the picture of a link. */
export const WIDTH = 1200;
export const HEIGHT = 630;
const LANES = 8;
const LEFT = 110;
const RIGHT = WIDTH - 40;
const TOP = 130;
const LANE = 18;

/** SVG that stands alone; `colour` gives the value of one of JupyterLab's variables. */
export function jobPicture(
  job: IJobView,
  told: string,
  colour: (name: string) => string
): string {
  const of = (name: string, otherwise: string) =>
    safe(colour(name) || otherwise);
  const ink = of('--jp-ui-font-color1', '#222');
  const faint = of('--jp-ui-font-color2', '#777');
  const line = of('--jp-border-color2', '#ddd');
  const work = of('--jp-brand-color1', '#1976d2');
  const warn = of('--jp-warn-color1', '#ef6c00');
  const bad = of('--jp-error-color1', '#c62828');
  const rows = lanes(job, job.updated_s ?? 0).slice(0, LANES);
  const bottom = HEIGHT - 60 - rows.length * LANE - (rows.length ? 30 : 0);
  const text = (x: number, y: number, words: string, more = '', fill = faint) =>
    `<text x="${x}" y="${y}" fill="${fill}" ${more}>${safe(words)}</text>`;
  const parts = [
    `<rect width="100%" height="100%" fill="${of('--jp-layout-color1', '#fff')}"/>`,
    text(40, 64, job.name || job.id, 'font-size="34" font-weight="600"', ink),
    text(40, 98, told, 'font-size="18"'),
    text(RIGHT, 64, job.id, 'text-anchor="end"'),
    text(RIGHT, HEIGHT - 18, 'jupyter_hyperpod', 'text-anchor="end"')
  ];

  const points = job.history.filter(point => point[1] !== null);
  if (points.length > 1) {
    const losses = points.map(point => point[1] as number);
    const low = losses.reduce((a, b) => Math.min(a, b));
    const high = losses.reduce((a, b) => Math.max(a, b));
    const first = points[0];
    const last = points[points.length - 1];
    const across = (step: number) =>
      LEFT + ((step - first[0]) / (last[0] - first[0] || 1)) * (RIGHT - LEFT);
    const up = (loss: number) =>
      bottom - ((loss - low) / (high - low || 1)) * (bottom - TOP);
    for (const loss of [low, (low + high) / 2, high]) {
      const y = up(loss).toFixed(1);
      parts.push(
        `<path d="M${LEFT} ${y}H${RIGHT}" stroke="${line}"/>`,
        text(LEFT - 12, +y + 5, formatLoss(loss), 'text-anchor="end"')
      );
    }
    parts.push(
      text(LEFT, bottom + 22, formatInteger(first[0])),
      text(RIGHT, bottom + 22, formatInteger(last[0]), 'text-anchor="end"')
    );
    for (const incident of job.incidents) {
      const at = points.find(point => point[2] >= incident.started_s);
      if (at) {
        const x = across(at[0]).toFixed(1);
        parts.push(
          `<path d="M${x} ${TOP}V${bottom}" stroke="${warn}" stroke-dasharray="4 4"/>`
        );
      }
    }
    const path = points
      .map((point, at) => {
        const y = up(losses[at]).toFixed(1);
        return `${at ? 'L' : 'M'}${across(point[0]).toFixed(1)} ${y}`;
      })
      .join('');
    parts.push(
      `<path d="${path}" fill="none" stroke="${work}" stroke-width="2.5" stroke-linejoin="round"/>`
    );
  }

  if (rows.length) {
    const all = rows.flatMap(row => row.spans);
    const from_s = all.reduce((a, b) => Math.min(a, b.from_s), Infinity);
    const to_s = all.reduce((a, b) => Math.max(a, b.to_s), from_s + 1);
    const across = (time_s: number) =>
      LEFT + ((time_s - from_s) / (to_s - from_s)) * (RIGHT - LEFT);
    rows.forEach((row, at) => {
      const y = bottom + 46 + at * LANE;
      parts.push(text(LEFT - 12, y + 11, short(row.node), 'text-anchor="end"'));
      for (const span of row.spans) {
        const x = across(span.from_s);
        const width = Math.max(1, across(span.to_s) - x).toFixed(1);
        const fill = span.role === 'lost' ? bad : work;
        const faded = span.role === 'spare' ? ' opacity="0.3"' : '';
        parts.push(
          `<rect x="${x.toFixed(1)}" y="${y}" width="${width}" height="${LANE - 5}" rx="2" fill="${fill}"${faded}/>`
        );
      }
    });
    parts.push(text(40, HEIGHT - 18, formatClock(from_s)));
  }
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" ` +
    `viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="system-ui, sans-serif" font-size="14">` +
    `${parts.join('')}</svg>`
  );
}

function short(name: string): string {
  return name.length > 10 ? `…${name.slice(-9)}` : name;
}

function safe(text: string): string {
  return text
    .replace(/&/g, '&amp;')
    .replace(/</g, '&lt;')
    .replace(/"/g, '&quot;')
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd]/g, '');
}
