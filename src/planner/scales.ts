/** Converts positions of sliders to figures and back. The server computes everything else. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { IPlanRequest } from '../api';
import {
  formatCount,
  formatDuration,
  formatInteger,
  formatMoney
} from '../format';

/** Positions of a slider, from 0. */
export const NOTCHES = 400;

/** A figure with a slider. On a logarithmic one equal distances are equal ratios. */
export interface IScale {
  name: keyof Pick<
    IPlanRequest,
    | 'instances'
    | 'rate'
    | 'manual_s'
    | 'automatic_s'
    | 'checkpoint_cost_s'
    | 'gpu_hours'
    | 'price'
  >;
  label: string;
  low: number;
  high: number;
  logarithmic: boolean;
  /** The smallest step of the figure itself. */
  step: number;
  format: (value: number) => string;
}

export const FIRST: IPlanRequest = {
  instances: 256,
  rate: 0.0005,
  manual_s: 280 * 60,
  automatic_s: 40 * 60,
  checkpoint_cost_s: 0,
  gpu_hours: 10e6,
  price: 5,
  convention: 'productive'
};

export function scales(trans: TranslationBundle): IScale[] {
  return [
    {
      name: 'instances',
      label: trans.__('Instances'),
      low: 1,
      high: 100_000,
      logarithmic: true,
      step: 1,
      format: formatInteger
    },
    {
      name: 'rate',
      label: trans.__('Failures of an instance'),
      low: 0.00001,
      high: 0.01,
      logarithmic: true,
      step: 0.000001,
      format: value => `${+(100 * value).toPrecision(3)} %/h`
    },
    {
      name: 'manual_s',
      label: trans.__('Recovery by hand'),
      low: 60,
      high: 86_400,
      logarithmic: true,
      step: 60,
      format: formatDuration
    },
    {
      name: 'automatic_s',
      label: trans.__('Automatic recovery'),
      low: 1,
      high: 36_000,
      logarithmic: true,
      step: 1,
      format: formatDuration
    },
    {
      name: 'checkpoint_cost_s',
      label: trans.__('Saving a checkpoint'),
      low: 0,
      high: 1800,
      logarithmic: false,
      step: 5,
      format: value => (value ? formatDuration(value) : trans.__('nothing'))
    },
    {
      name: 'gpu_hours',
      label: trans.__('Work, GPU-hours'),
      low: 1e4,
      high: 1e9,
      logarithmic: true,
      step: 1000,
      format: formatCount
    },
    {
      name: 'price',
      label: trans.__('Price of a GPU-hour'),
      low: 0,
      high: 20,
      logarithmic: false,
      step: 0.1,
      format: formatMoney
    }
  ];
}

/** The notch of a figure. */
export function notchOf(scale: IScale, value: number): number {
  const within = Math.min(scale.high, Math.max(scale.low, value));
  const part = scale.logarithmic
    ? Math.log(within / scale.low) / Math.log(scale.high / scale.low)
    : (within - scale.low) / (scale.high - scale.low);
  return Math.round(part * NOTCHES);
}

/** The figure at a notch: two significant digits on a logarithmic scale, never finer than its step. */
export function valueAt(scale: IScale, notch: number): number {
  const part = Math.min(1, Math.max(0, notch / NOTCHES));
  if (!scale.logarithmic) {
    const value = scale.low + part * (scale.high - scale.low);
    return +(Math.round(value / scale.step) * scale.step).toPrecision(6);
  }
  const value = scale.low * (scale.high / scale.low) ** part;
  const digit = 10 ** (Math.floor(Math.log10(value)) - 1);
  const unit = Math.max(scale.step, scale.step >= 60 ? scale.step : digit);
  const rounded = +(Math.round(value / unit) * unit).toPrecision(6);
  return Math.min(scale.high, Math.max(scale.low, rounded));
}
