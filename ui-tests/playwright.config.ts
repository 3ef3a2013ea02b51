/**
 * Browser tests: a real Jupyter server, a real Chromium, and for train.spec.ts a real cluster of processes.
 *
 * HYPERPOD_PYTHON   the interpreter that has jupyter_hyperpod (default: ../.venv/bin/python)
 * CHROMIUM          the browser (default: /usr/bin/chromium)
 */
import { existsSync } from 'fs';
import { join } from 'path';

import { defineConfig } from '@playwright/test';

const OUTPUT = join(__dirname, '..', 'test-output', 'ui');
const BROWSERS = [
  process.env.CHROMIUM ?? '',
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome'
];
const executablePath = BROWSERS.find(path => path && existsSync(path));
if (executablePath === undefined) {
  throw new Error(
    'No Chromium was found at /usr/bin/chromium; install the package chromium, or set CHROMIUM to its path.'
  );
}

// Every worker reads this file again: the port is chosen once and handed down.
process.env.HYPERPOD_UI_PORT ??= String(20_000 + (process.pid % 12_000));

export default defineConfig({
  testDir: 'tests',
  outputDir: join(OUTPUT, 'results'),
  timeout: 300_000,
  expect: { timeout: 30_000 },
  workers: 1,
  retries: 1, // one that passes the second time is listed as flaky, with the trace of the first
  forbidOnly: !!process.env.CI,
  reporter: [['list']],
  use: {
    baseURL: `http://127.0.0.1:${process.env.HYPERPOD_UI_PORT}`,
    viewport: { width: 1440, height: 960 },
    actionTimeout: 60_000,
    navigationTimeout: 90_000,
    video: 'off',
    // without a film, for which each test paints and encodes every frame
    trace: { mode: 'retain-on-failure', screenshots: false },
    screenshot: 'only-on-failure',
    launchOptions: {
      executablePath,
      args: ['--no-sandbox', '--disable-gpu', '--disable-quic']
    }
  }
});
