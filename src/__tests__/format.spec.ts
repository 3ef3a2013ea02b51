import {
  formatBytes,
  formatCount,
  formatDuration,
  formatInteger,
  formatLoss,
  formatMoney
} from '../format';

it.each([
  [0.0124, '12 ms'],
  [0.9994, '999 ms'],
  [1.5, '1.5 s'],
  [59.96, '1 min'],
  [200, '3 min 20 s'],
  [7500, '2 h 5 min'],
  [7200, '2 h']
])('says %d seconds as %s', (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

it.each([
  [0, '0 B'],
  [999, '999 B'],
  [101_056_512, '101 MB'],
  [1.5e9, '1.5 GB']
])('says %d bytes as %s', (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

it.each([
  [950, '950'],
  [12_345, '12.3 k'],
  [8_421_376, '8.42 M'],
  [75.4321, '75.4']
])('counts %d as %s', (count, text) => {
  expect(formatCount(count)).toBe(text);
});

it.each([
  [null, '–'],
  [2.31449, '2.3145'],
  [0, '0.0000'],
  [1.2e-6, '1.20e-6'],
  [1234.56, '1234.6']
])('prints the loss %p as %s', (loss, text) => {
  expect(formatLoss(loss)).toBe(text);
  expect(formatLoss(loss, 3)).toBe(loss === null ? 'nan' : text);
});

it.each([
  [0, '$0'],
  [4.1, '$4.10'],
  [25_600_000, '$25,600,000'],
  [-1234.4, '-$1,234']
])('writes %d dollars as %s', (amount, text) => {
  expect(formatMoney(amount)).toBe(text);
});

it('groups whole numbers by three', () => {
  expect(formatInteger(1234567)).toBe('1\u202f234\u202f567');
  expect(formatInteger(999)).toBe('999');
});
