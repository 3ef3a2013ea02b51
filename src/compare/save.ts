/** Saves a drawing or a text as a file of the browser's. */

const COPIED = [
  'fill',
  'fill-opacity',
  'stroke',
  'stroke-opacity',
  'stroke-width',
  'stroke-linejoin',
  'paint-order',
  'opacity',
  'font-family',
  'font-size',
  'font-weight'
];
/** Pixels of a picture for one of the screen. */
const SHARP = 2;

/** Save a drawing with its colours, which come from the theme, written into it. */
export async function saveDrawing(
  drawing: SVGSVGElement,
  name: string,
  kind: 'svg' | 'png'
): Promise<void> {
  const text = standalone(drawing);
  const { clientWidth, clientHeight } = drawing;
  const file =
    kind === 'svg'
      ? new Blob([text], { type: 'image/svg+xml' })
      : await painted(text, clientWidth, clientHeight);
  save(file, `${name}.${kind}`);
}

/** The drawing as a file of its own. */
export function standalone(drawing: SVGSVGElement): string {
  const copy = drawing.cloneNode(true) as SVGSVGElement;
  const from = [drawing, ...drawing.querySelectorAll<SVGElement>('*')];
  const to = [copy, ...copy.querySelectorAll<SVGElement>('*')];
  from.forEach((element, at) => {
    const style = getComputedStyle(element);
    for (const property of COPIED) {
      const value = style.getPropertyValue(property);
      if (value) {
        to[at].setAttribute(property, value);
      }
    }
    to[at].removeAttribute('class');
    to[at].removeAttribute('style');
  });
  const background = document.createElementNS(copy.namespaceURI, 'rect');
  background.setAttribute('width', '100%');
  background.setAttribute('height', '100%');
  background.setAttribute(
    'fill',
    getComputedStyle(document.body)
      .getPropertyValue('--jp-layout-color1')
      .trim() || '#fff'
  );
  copy.insertBefore(background, copy.firstChild);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  return new XMLSerializer().serializeToString(copy);
}

/** A drawing of this size as pixels. */
export async function painted(
  text: string,
  width: number,
  height: number
): Promise<Blob> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = width * SHARP;
  canvas.height = height * SHARP;
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob(
      blob => (blob ? resolve(blob) : reject(new Error('no picture'))),
      'image/png'
    )
  );
}

/** Give a file to the browser. */
export function save(content: Blob, name: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
