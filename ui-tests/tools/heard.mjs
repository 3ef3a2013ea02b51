/**
 * Walks through JupyterLab with the keyboard while a screen reader listens: `node tools/heard.mjs URL FILE`.
 *
 * FILE is the log that Orca writes. Prints each key, and what was said after it. Run it by `heard.sh`.
 */

import { readFileSync } from 'node:fs';

import { chromium } from '@playwright/test';

const [, , url, file] = process.argv;
const SPOKEN = /SPEECH OUTPUT: '(.*?)'(?:\s*\{|$)/;
/** Orca has said all of it when it has been silent for so long. */
const SILENT_MS = 1000;

let told = 0;

function news() {
  const lines = readFileSync(file, 'utf8')
    .split('\n')
    .filter(line => SPOKEN.test(line));
  const fresh = lines.slice(told).map(line => SPOKEN.exec(line)[1]);
  told = lines.length;
  return fresh;
}

async function heard(what) {
  const said = [];
  let more;
  do {
    await new Promise(resolve => setTimeout(resolve, SILENT_MS));
    more = news();
    said.push(...more);
  } while (more.length > 0);
  console.log(`${what.padEnd(28)} ${said.join(' | ')}`);
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
  headless: false,
  args: ['--no-sandbox', '--disable-gpu', '--force-renderer-accessibility']
});
const page = await (await browser.newContext({ viewport: null })).newPage();

async function press(key, times = 1) {
  for (let turn = 0; turn < times; turn++) {
    await page.keyboard.press(key);
    await heard(key);
  }
}

async function command(name, args = {}) {
  await page.evaluate(
    ([id, given]) => void window.jupyterapp.commands.execute(id, given),
    [name, args]
  );
  await heard(name);
}

async function focus(selector) {
  await page.locator(selector).first().focus();
  await heard('(focus)');
}

await page.goto(`${url}&reset`);
await page.locator('.jp-LauncherCard').first().waitFor();
await heard('JupyterLab opens');
await command('hyperpod:show-panel');
await focus('.jp-Hp-sidebar button');
await press('Tab', 6);
await focus('.jp-Hp-node');
await press('ArrowRight', 2);
await focus('.jp-Hp-job button');
await press('Enter');
await focus('.jp-Hp-dashboard button');
await press('Tab', 12);
await command('hyperpod:open-runs');
await focus('.jp-Hp-runs .jp-Hp-filter');
await press('Tab', 10);
await press('Enter');
await command('notebook:create-new', { kernelName: 'python3' });
await press('Enter');
await page.keyboard.type('print(1)');
await command('hyperpod:run-cells');
await press('Tab', 8);
await press('Escape');
await browser.close();
