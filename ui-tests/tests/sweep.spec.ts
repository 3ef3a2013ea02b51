/** A sweep in parallel coordinates: from the table of runs, with ranges, by keyboard, live, and with a thousand trials. */

import { Page } from '@playwright/test';

import { barriers, expect, openNotebook, picture, test } from './fixtures';
import { button, Keys } from './keys';

test.use({ suite: 'sweep' });

const VIEW = '.jp-Hp-trials';
const TOOL = 'ui-tests/tools/sweep.py';

async function command(page: Page, name: string, args = {}): Promise<void> {
  await page.evaluate(
    ([id, given]) =>
      (window as any).jupyterapp.commands
        .execute(id as string, given as any)
        .then(() => null),
    [name, args] as const
  );
}

test.describe.serial('a sweep in parallel coordinates', () => {
  let sweep: string;
  let jobs: string[];

  test.beforeAll(({ server }) => {
    const printed = server.python(TOOL, server.store).trim().split('\n');
    [sweep, ...jobs] = printed;
  });

  test('opens from a row of the table of runs, and opens its best run', async ({
    page
  }) => {
    await command(page, 'hyperpod:open-runs');
    await page
      .locator('.jp-Hp-runs .jp-Hp-gridbody')
      .getByRole('button', { name: sweep })
      .first()
      .click();
    const view = page.locator(VIEW);
    await expect(view.getByRole('status')).toContainText('48 trials');
    await expect(view.getByRole('status')).toContainText('46 have ended');
    await expect(view.locator('.jp-Hp-trial')).toHaveCount(48);
    expect(await barriers(page, VIEW)).toEqual([]);
    await picture(page, 'sweep');
    const row = view.locator('tbody tr').first();
    await expect(row, 'the best is the first').toHaveAttribute('data-best');
    await row.hover();
    await expect(view.locator('.jp-Hp-readouts')).toContainText('accuracy');
    const job = await row.getByRole('button').getAttribute('title');
    await view.getByRole('button', { name: 'Open best run' }).click();
    await expect(
      page.locator('.jp-Hp-dashboard:not(.jp-Hp-trials):visible')
    ).toContainText(job!.slice(-8));
  });

  test('opens from the table below a cell', async ({ page, server }) => {
    const cells = [
      '%load_ext jupyter_hyperpod',
      `%hyperpod sweep follow ${sweep}`
    ];
    await openNotebook(page, server, 'sweep.ipynb', ...cells);
    await page.menu.clickMenuItem('Run>Run All Cells'); // it follows two trials that never end
    await page.getByRole('link', { name: 'Compare the trials' }).click();
    await expect(page.locator(VIEW).getByRole('status')).toContainText(
      '48 trials'
    );
    await page.menu.clickMenuItem('Kernel>Shut Down All Kernels…');
    await page.getByRole('button', { name: 'Shut Down All' }).click();
  });

  test('a range leaves lines and rows, by pointer and by keyboard', async ({
    page
  }) => {
    await command(page, 'hyperpod:open-trials', { sweep });
    const view = page.locator(VIEW);
    await expect(view.locator('.jp-Hp-trial')).toHaveCount(48);
    const metric = view.locator('.jp-Hp-handles').last();
    const box = (await metric.boundingBox())!;
    await page.mouse.move(box.x + 14, box.y + box.height * 0.3);
    await page.mouse.down();
    await page.mouse.move(box.x + 14, box.y + 40);
    await page.mouse.move(box.x + 14, box.y + 20, { steps: 4 });
    await page.mouse.up();
    await expect(view.getByRole('status')).toContainText('of 48 trials');
    const left = await view.locator('tbody tr').count();
    expect(left).toBeLessThan(48);
    await expect(view.locator('.jp-Hp-trial:not([data-out])')).toHaveCount(
      left
    );
    await view.getByRole('button', { name: 'Show all' }).click();
    await expect(view.locator('tbody tr')).toHaveCount(48);

    const handle = view.getByRole('slider', { name: 'optimizer, from' });
    await handle.focus();
    await page.keyboard.press('ArrowUp');
    await page.keyboard.press('ArrowUp');
    await expect(handle).toHaveAttribute('aria-valuetext', 'adamw');
    const rows = view.locator('tbody tr');
    for (const row of await rows.all()) {
      await expect(row).toContainText('adamw');
    }
    await picture(page, 'sweep-range');
    await handle.focus();
    await page.keyboard.press('Escape');
    await expect(rows).toHaveCount(48);
    const saved = page.waitForEvent('download');
    await view.getByRole('button', { name: 'SVG' }).click();
    expect((await saved).suggestedFilename()).toBe(`${sweep}.svg`);
  });

  test('is used with the keyboard alone', async ({ page }) => {
    const keys = new Keys(page);
    const view = page.locator(VIEW);
    keys.view('Sweep: from the table of runs');
    await keys.command('Table of Runs');
    const row = page.locator('.jp-Hp-runs [data-index="0"]');
    await keys.reach(row);
    await keys.reach(row.getByTitle(`Draw all trials of ${sweep}`));
    await keys.press('Enter');
    await expect(view.locator('.jp-Hp-trial')).toHaveCount(48);

    keys.view('Sweep: parallel coordinates');
    const handle = view.getByRole('slider', { name: 'optimizer, from' });
    await keys.reach(handle);
    await keys.press('ArrowUp', 'ArrowUp');
    await expect(handle).toHaveAttribute('aria-valuetext', 'adamw');
    await expect(view.getByRole('status')).toContainText('of 48 trials');
    await expect(handle, 'it stays where the keys are').toBeFocused();
    expect(await barriers(page, VIEW)).toEqual([]);
    await keys.reach(button(view, 'Show all'), 'Shift+Tab');
    await keys.press('Enter');
    await expect(view.locator('tbody tr')).toHaveCount(48);
    await expect(view.locator(':focus'), 'it is not lost').toHaveCount(1);

    keys.view('Sweep: the table of its trials');
    const best = view.locator('tbody tr').first().getByRole('button');
    await keys.reach(best);
    await expect(view.locator('.jp-Hp-readouts')).toContainText('accuracy');
    await keys.press('Enter');
    await expect(
      page.locator('.jp-Hp-dashboard:not(.jp-Hp-trials):visible')
    ).toBeVisible();
    keys.keep('keyboard-sweep');
  });

  test('ticked runs are drawn by the parameters in which they differ', async ({
    page
  }) => {
    await command(page, 'hyperpod:open-trials', {
      ids: jobs.slice(0, 6).join(' ')
    });
    const view = page.locator(VIEW);
    await expect(view.locator('.jp-Hp-trial')).toHaveCount(6);
    await expect(view.getByLabel('Judged by')).toHaveValue('accuracy');
    await expect(view.getByLabel('Large is good')).toBeChecked();
    expect(await barriers(page, VIEW)).toEqual([]);
    await view.getByLabel('Large is good').click();
    await expect(view.getByLabel('Large is good')).not.toBeChecked();
    await expect(view.locator('.jp-Hp-axes')).toContainText('small is good');
  });
});
