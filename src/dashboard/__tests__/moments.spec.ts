import { absolute } from '../moments';

const now = new Date(2026, 10, 27, 12, 0, 0);
const local = (day: number, hour: number, minute = 0, second = 0) =>
  new Date(2026, 10, day, hour, minute, second).toISOString();

describe('a time as a person writes it', () => {
  it('on the clock is the last one', () => {
    expect(absolute('9:30', now)).toBe(local(27, 9, 30));
    expect(absolute('15:00:05', now)).toBe(local(26, 15, 0, 5));
  });

  it('on the clock at the end is the first one after the beginning', () => {
    expect(absolute('9:00', now, local(27, 8))).toBe(local(27, 9));
    expect(absolute('13:00', now, local(27, 11))).toBe(local(27, 13));
  });

  it('with a date is of this time zone', () => {
    expect(absolute('2026-11-25 21:00', now)).toBe(local(25, 21));
    expect(absolute('2026-11-25', now)).toBe(local(25, 0));
  });

  it.each(['10min', '25:00', '2026-13-45', '2026-11-25T21:00Z', 'soon', ''])(
    'that is none of these stays as it is: %s',
    text => expect(absolute(text, now)).toBe(text)
  );
});
