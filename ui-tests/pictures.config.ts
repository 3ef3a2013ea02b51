/** What `make pictures` runs: the tests' own browser and server, with a page of the size of the README's pictures. */
import { join } from 'path';

import { defineConfig } from '@playwright/test';

import tests from './playwright.config';

export default defineConfig({
  ...tests,
  testDir: 'pictures',
  outputDir: join(__dirname, '..', 'test-output', 'pictures', 'results'),
  retries: 0,
  timeout: 120_000,
  use: { ...tests.use, viewport: { width: 1240, height: 940 } }
});
