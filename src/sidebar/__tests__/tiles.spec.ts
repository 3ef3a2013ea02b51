import { heightOf, near } from '../tiles';

const PITCH = 9;
const HEADING = 23;
const SIZE = { tile: 8, pitch: PITCH, heading: HEADING };

describe('blocks of tiles', () => {
  it.each([
    [100, false, 269, 4 * PITCH],
    [100, false, 268.9, 4 * PITCH], // 29 per row
    [90, true, 269, 3 * PITCH + HEADING],
    [1, false, 3, PITCH]
  ])('of %s nodes (headed: %s, %s pixels wide) are %s high', (...given) => {
    const [tiles, headed, width, height] = given;
    expect(heightOf(tiles, headed, { ...SIZE, width })).toBe(height);
  });

  it('are as high as they are drawn where the page is zoomed', () => {
    const zoomed = { ...SIZE, tile: 7.979, pitch: 8.969, width: 304.6 };
    expect(heightOf(100, false, zoomed)).toBeCloseTo(3 * 8.969);
    expect(heightOf(100, false, { ...SIZE, width: 304.6 })).toBe(4 * PITCH);
  });

  const heights = [100, 500, 20, 20, 900, 10];

  it.each([0, 90, 259, 261, 640, 700, 1500, 5000])(
    'that reach into the part that is seen from %s are all drawn',
    top => {
      const place = { top, height: 300 };
      const [first, last] = near(heights, place);
      heights.reduce((above, height, index) => {
        if (above < top + 300 && above + height > top) {
          expect(first).toBeLessThanOrEqual(index);
          expect(last).toBeGreaterThan(index);
        }
        return above + height;
      }, 0);
      expect(first).toBeLessThan(last);
    }
  );

  it('far from it are not drawn', () => {
    const many = Array.from({ length: 100 }, () => 36);
    expect(near(many, { top: 0, height: 320 })).toEqual([0, 14]);
    expect(near(many, { top: 1800, height: 320 })).toEqual([45, 64]);
    expect(near([], { top: 0, height: 320 })).toEqual([0, 0]);
  });
});
