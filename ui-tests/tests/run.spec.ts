/** "Run on cluster": from a plain cell, through the form, to a job under the cell. */

import { IJupyterLabPageFixture } from '@jupyterlab/galata';
import { Locator, Page } from '@playwright/test';

import {
  barriers,
  expect,
  openNotebook,
  openPanel,
  picture,
  test
} from './fixtures';

test.use({ suite: 'run' });

const CODE = `import os
print("rank", os.environ.get("RANK", "0"), "says hello")`;

/** The text of a cell, as the notebook has it. */
function sourceOf(
  page: IJupyterLabPageFixture,
  index: number
): Promise<string> {
  return page.evaluate(at => {
    const panel = (window as any).jupyterapp.shell.currentWidget;
    return panel.content.widgets[at].model.sharedModel.getSource();
  }, index);
}

async function openForm(page: IJupyterLabPageFixture): Promise<Locator> {
  await page.notebook.selectCells(0);
  const item = page.locator(
    '.jp-NotebookPanel-toolbar [data-jp-item-name="hyperpod-run"]'
  );
  await expect(
    item.getByRole('button', { name: /^Run on cluster/ })
  ).toBeVisible();
  await item.click();
  const form = page.locator('.jp-Hp-rundialog');
  await expect(form).toBeVisible();
  return form;
}

/** From the first click to a job that runs, in a server that has just been started, without a cluster. */
const FIRST_JOB = { clicks: 3, seconds: 60 };

/** Counts what a person does in the page from now on; what a test calls by itself is no click. */
async function countDeeds(
  page: Page
): Promise<() => Promise<{ clicks: number; keys: number }>> {
  await page.evaluate(() => {
    const deeds = { clicks: 0, keys: 0 };
    (window as any).deeds = deeds;
    const count = (name: keyof typeof deeds) => (event: Event) => {
      deeds[name] += event.isTrusted ? 1 : 0;
    };
    window.addEventListener('pointerdown', count('clicks'), true);
    window.addEventListener('keydown', count('keys'), true);
  });
  return () => page.evaluate(() => (window as any).deeds);
}

test('an empty panel is there for everybody', async ({ page }) => {
  await openPanel(page);
  await picture(page, 'empty-panel');
  expect(await barriers(page, '#jp-hyperpod-sidebar')).toEqual([]);
});

test('three clicks lead to the first job within a minute, without a key', async ({
  page
}) => {
  const deeds = await countDeeds(page);
  const began_ms = Date.now();
  await openPanel(page);
  const panel = page.locator('#jp-hyperpod-sidebar');
  await panel.getByRole('button', { name: 'Open the example' }).click();
  const cells = page.locator('.jp-Notebook .jp-CodeCell');
  await expect(cells.last()).toHaveClass(/jp-mod-active/);
  await expect(page.getByText('Python 3 (ipykernel) | Idle')).toBeVisible();
  await page
    .locator('.jp-NotebookPanel-toolbar [data-jp-item-name="run"]')
    .click();
  const card = cells.last().locator('.jp-Hp-card');
  const runs = card.getByText(/^(Running|Succeeded)$/);
  await expect(runs).toBeVisible({ timeout: 1000 * FIRST_JOB.seconds });
  const took_s = (Date.now() - began_ms) / 1000;
  test.info().annotations.push({
    type: 'first job',
    description: `${took_s.toFixed(1)} s`
  });
  expect(await deeds()).toEqual({ clicks: FIRST_JOB.clicks, keys: 0 });
  expect(took_s).toBeLessThanOrEqual(FIRST_JOB.seconds);
  await expect(card.getByText('Succeeded')).toBeVisible({ timeout: 120_000 });
  await expect(cells.last()).toContainText('state ');
  await picture(page, 'example-done');
});

test('a plain cell becomes a job, and its line is in the notebook', async ({
  page,
  server
}) => {
  await openNotebook(page, server, 'plain.ipynb', CODE);
  const form = await openForm(page);
  const line = form.locator('.jp-Hp-line code');
  const run = form.getByRole('button', { name: 'Run', exact: true });

  await test.step('the form teaches', async () => {
    await expect(form).toContainText(
      /4 of 4 nodes are free now|No cluster is running/
    );
    await expect(line).toHaveText('%%hyperpod --nodes 4');
    await expect(form.getByLabel('Environment')).toHaveAttribute(
      'placeholder',
      /python/
    );
    await expect(form.getByLabel('Nodes')).toBeFocused();
    await form.getByLabel('Nodes').fill('2');
    await form.getByRole('checkbox', { name: 'Elastic' }).check();
    await expect(line).toHaveText('%%hyperpod --nodes 2 --elastic 1:2');
    await picture(page, 'run-form');
    await form.getByLabel('Name', { exact: true }).fill('my job');
    await expect(form).toContainText('Use 1 to 40 letters');
    await expect(run).toBeDisabled();
    await form.getByLabel('Name', { exact: true }).fill('hello');
    await expect(run).toBeEnabled();
  });

  await test.step('a dry run tells what would be submitted', async () => {
    await form.getByRole('button', { name: 'Dry run' }).click();
    const said = form.locator('.jp-Hp-said');
    await expect(said).toContainText('would submit 2 lines');
    await expect(said).toContainText('hello');
    for (const theme of ['Dark', 'Light']) {
      await page.theme.setTheme(`JupyterLab ${theme}`);
      expect(await barriers(page, '.jp-Hp-run')).toEqual([]);
    }
    await picture(page, 'run-dry');
    await form.getByText('More options').click();
    await form.locator('.jp-Hp-fields').last().scrollIntoViewIfNeeded();
    await picture(page, 'run-more');
    expect(await barriers(page, '.jp-Hp-run')).toEqual([]);
  });

  await test.step('the cell runs, without %load_ext', async () => {
    await form.getByLabel('Priority').focus();
    await page.keyboard.press('Control+Enter');
    await expect(form).toBeHidden();
    const card = page.locator('.jp-Hp-card');
    await expect(card.getByText('Succeeded')).toBeVisible({ timeout: 120_000 });
    await expect(page.locator('.jp-OutputArea').first()).toContainText(
      'says hello'
    );
    expect(await sourceOf(page, 0)).toBe(
      `%%hyperpod --nodes 2 --elastic 1:2 --name hello\n${CODE}`
    );
    await picture(page, 'run-done');
  });

  await test.step('after a restart of the kernel, Shift-Enter is enough', async () => {
    await page.menu.clickMenuItem('Kernel>Restart Kernel…');
    await page.getByRole('button', { name: 'Confirm Kernel Restart' }).click();
    await page.notebook.runCell(0);
    await expect(page.locator('.jp-OutputArea').first()).not.toContainText(
      'UsageError'
    );
    await expect(
      page.locator('.jp-Hp-card').getByText('Succeeded')
    ).toBeVisible({ timeout: 60_000 });
    await expect(page.locator('.jp-OutputArea').first()).toContainText(
      'says hello'
    );
  });

  await test.step('the form reads the line, and Escape closes it', async () => {
    const again = await openForm(page);
    await expect(again.getByLabel('Name', { exact: true })).toHaveValue(
      'hello'
    );
    await expect(again).toContainText('nodes are free now');
    await page.keyboard.press('Escape');
    await expect(again).toBeHidden();
  });
});

test('a notebook becomes one job, with other values for its parameters', async ({
  page,
  server
}) => {
  await openNotebook(
    page,
    server,
    'whole.ipynb',
    '%load_ext jupyter_hyperpod',
    {
      source: 'steps = 60  # of the training\nname = "first"',
      tags: ['parameters']
    },
    'doubled = steps * 2',
    'print(name, doubled)'
  );
  const form = page.locator('.jp-Hp-rundialog');
  const cells = page.locator('.jp-Notebook .jp-CodeCell');

  await test.step('the menu of a cell offers both', async () => {
    await (await page.notebook.getCellLocator(2))!.click({ button: 'right' });
    const menu = page.locator('.lm-Menu');
    await expect(menu).toContainText('Run Selected Cells on Cluster…');
    await menu.getByText('Run Notebook on Cluster…').click();
    await expect(form).toContainText('3 code cells of this notebook');
  });

  await test.step('a parameter gets another value', async () => {
    await form.getByLabel('Nodes').fill('1');
    await form.getByRole('checkbox', { name: 'Elastic' }).uncheck(); // of the other test
    await form.getByLabel('steps').fill('7');
    expect(await barriers(page, '.jp-Hp-run')).toEqual([]);
    await picture(page, 'run-notebook');
    await form.getByRole('button', { name: 'Run', exact: true }).click();
    await expect(cells).toHaveCount(5);
    await expect(cells.last()).toContainText('first 14', { timeout: 90_000 });
    expect(await sourceOf(page, 4)).toBe(
      '%%hyperpod --nodes 1\n' +
        '# %% code cell 2 of whole.ipynb\nsteps = 60  # of the training\nname = "first"\n\n' +
        '# Parameters of this run\nsteps = 7\n\n' +
        '# %% code cell 3 of whole.ipynb\ndoubled = steps * 2\n\n' +
        '# %% code cell 4 of whole.ipynb\nprint(name, doubled)'
    );
  });

  await test.step('selected cells are one job, too, and the last choice is offered', async () => {
    await page.notebook.selectCells(1, 3);
    await page.keyboard.press('Control+Alt+Enter');
    await expect(form).toContainText('3 cells become one job');
    await expect(form.locator('.jp-Hp-line code')).toHaveText(
      '%%hyperpod --nodes 1'
    );
    await expect(form.getByLabel('Nodes')).toBeFocused();
    await page.keyboard.press('Control+Enter');
    await expect(cells).toHaveCount(6);
    await expect(cells.nth(4)).toContainText('first 120', { timeout: 90_000 });
  });

  await test.step('the notebook runs again in the same cell', async () => {
    await page.evaluate(() => {
      void (window as any).jupyterapp.commands.execute('hyperpod:run-notebook');
    });
    await expect(form.getByLabel('Nodes')).toBeFocused();
    await form.getByLabel('Nodes').fill('2');
    await page.keyboard.press('Control+Enter');
    await expect(form).toBeHidden();
    await expect(cells).toHaveCount(6);
    await expect(cells.last()).toContainText('[rank 1] first 120', {
      timeout: 90_000
    });
  });
});
