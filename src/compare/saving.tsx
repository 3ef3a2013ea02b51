import { downloadIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { useShared } from '../components/context';
import { Button } from '../components/parts';
import { save, saveDrawing } from './save';

/** Saves values as a table. */
export function CsvButton(props: {
  /** Of the file. */
  name: string;
  text: () => string;
  title: string;
}): JSX.Element {
  const { trans } = useShared();
  return (
    <Button
      icon={downloadIcon}
      title={props.title}
      onClick={() =>
        save(
          new Blob([props.text()], { type: 'text/csv' }),
          `${props.name}.csv`
        )
      }
    >
      {trans.__('CSV')}
    </Button>
  );
}

/** Saves a drawing as a picture. */
export function PictureButtons(props: {
  name: string;
  drawing: React.RefObject<SVGSVGElement>;
  disabled?: boolean;
}): JSX.Element {
  const { name, drawing, disabled } = props;
  const { trans } = useShared();
  return (
    <>
      <Button
        disabled={disabled}
        title={trans.__('Save the curves of %1 as a picture (SVG)', name)}
        onClick={() => saveDrawing(drawing.current!, name, 'svg')}
      >
        {trans.__('SVG')}
      </Button>
      <Button
        disabled={disabled}
        title={trans.__('Save the curves of %1 as a picture (PNG)', name)}
        onClick={() => saveDrawing(drawing.current!, name, 'png')}
      >
        {trans.__('PNG')}
      </Button>
    </>
  );
}

/** Curves that are drawn before somebody asks for the others. */
const DRAWN = 12;

/** The first of many curves, and a button that draws the others below them. */
export function useSomeCurves<T>(
  all: readonly T[]
): readonly [readonly T[], JSX.Element | null] {
  const { trans } = useShared();
  return useSome(all, DRAWN, left =>
    trans._n('Draw %1 more curve', 'Draw %1 more curves', left)
  );
}

/** The first `most` of many things, and a button for the others. */
export function useSome<T>(
  all: readonly T[],
  most: number,
  label: (left: number) => string
): readonly [readonly T[], JSX.Element | null] {
  const [whole, setWhole] = React.useState(false);
  const shown = whole ? all : all.slice(0, most);
  const left = all.length - shown.length;
  const button = left > 0 && (
    <div>
      <Button onClick={() => setWhole(true)}>{label(left)}</Button>
    </div>
  );
  return [shown, button || null];
}
