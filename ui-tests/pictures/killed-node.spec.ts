/** The README's cell trains in an empty home, a node is killed from the panel, and each moment is kept. */

import { mkdirSync, readFileSync, writeFileSync } from 'fs';
import { join } from 'path';

import { Page } from '@playwright/test';

import { expect, openNotebook, openPanel, test } from '../tests/fixtures';

test.use({ suite: 'pictures' });

const ROOT = join(__dirname, '..', '..');
const FRAMES = process.env.HYPERPOD_FRAMES!;
const INTERVAL_MS = 250;
const BEFORE_THE_KILL_MS = 500;
/** More steps than the README has: there is something to look at before the kill and after it. */
const [STEPS, MORE_STEPS] = ['session.steps(60)', 'session.steps(300)'];
const VICTIM = 'node-2';

/** Keep a picture at each interval until `done`; its name says when it was taken. */
async function film(page: Page, done: Promise<unknown>): Promise<void> {
  let over = false;
  void done.finally(() => (over = true));
  const began = Date.now();
  while (!over) {
    const at = Date.now();
    const name = String(at - began).padStart(6, '0');
    await page.screenshot({ path: join(FRAMES, `frame-${name}.png`) });
    const rest = INTERVAL_MS - (Date.now() - at);
    await new Promise(resolve => setTimeout(resolve, Math.max(0, rest)));
  }
}

test('a cell trains, and a node is killed', async ({ page, server }) => {
  mkdirSync(FRAMES, { recursive: true });
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
  const cell = /```python\n(%%hyperpod[^]*?)\n```/.exec(readme)![1];
  expect(cell).toContain(STEPS);
  server.python('-m', 'jupyter_hyperpod', 'cluster', 'start'); // its nodes wait, as on an ordinary day
  await openNotebook(
    page,
    server,
    'first.ipynb',
    '%load_ext jupyter_hyperpod',
    cell.replace(STEPS, MORE_STEPS)
  );
  const run = (by = 'notebook:run-cell') =>
    page.evaluate(command => {
      void (window as any).jupyterapp.commands.execute(command);
    }, by);
  await expect(page.getByText('| Idle')).toBeVisible();
  await run('notebook:run-cell-and-select-next');
  await expect(page.locator('.jp-InputPrompt').first()).toHaveText('[1]:');
  await openPanel(page);
  await expect(page.locator('.jp-Hp-node', { hasText: 'free' })).toHaveCount(4);
  await page.getByRole('button', { name: /^Storage/ }).click(); // how full a disk is, is no matter here
  await page.locator(`.jp-Hp-node[data-node="${VICTIM}"]`).click();
  await page.getByRole('button', { name: /^Break something/ }).click();
  const code = page.locator('.jp-Notebook .jp-Cell').nth(1);
  await code.evaluate(element => element.scrollIntoView({ block: 'start' }));

  const card = page.locator('.jp-Hp-card');
  const detail = page.locator('.jp-Hp-detail');
  const shown = async () => {
    await run();
    await expect(card.getByText('Running')).toBeVisible({ timeout: 90_000 });
    await expect(card.getByText('4 of 4')).toBeVisible();
    await page.waitForTimeout(BEFORE_THE_KILL_MS);
    await detail.getByRole('button', { name: 'Kill node' }).click();
    await expect(card.locator('.jp-Hp-incident')).toContainText('resumed in');
    await page.getByRole('button', { name: /^Break something/ }).click();
    await expect(card.getByText('Succeeded')).toBeVisible({ timeout: 90_000 });
    await expect(
      code.getByText(/loss [0-9.]+, state [0-9a-f]{12}/)
    ).toBeVisible();
    await page.waitForTimeout(2 * INTERVAL_MS); // the last picture shows all of it
  };
  await film(page, shown());
  for (const theme of ['Light', 'Dark']) {
    await page.theme.setTheme(`JupyterLab ${theme}`);
    await page.waitForTimeout(400); // the curve is drawn again in the theme's colours
    const path = join(FRAMES, `${theme.toLowerCase()}.png`);
    await page.screenshot({ path });
  }
  writeFileSync(join(FRAMES, 'text'), await page.locator('body').innerText());
});
