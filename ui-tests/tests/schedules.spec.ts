/** The list of schedules, and the executed notebook of a job: light and dark, and without barriers. */

import { existsSync } from 'fs';
import { join } from 'path';

import { barriers, expect, openPanel, picture, test } from './fixtures';

test.use({ suite: 'schedules' });

test('schedules are listed, paused and deleted, and a job opens with its notebook', async ({
  page,
  server
}) => {
  const tool = 'ui-tests/tools/schedules.py';
  const id = server.python(tool, server.store, server.files).trim();
  await openPanel(page);
  const panel = page.locator('#jp-hyperpod-sidebar');
  await panel.getByRole('button', { name: /^Schedules/ }).click();
  const view = page.locator('.jp-Hp-schedules');
  const nightly = view.getByRole('region', { name: 'nightly' });
  await expect(nightly).toContainText('At 06:30 on Monday through Friday');
  await expect(nightly.locator('tbody tr')).toHaveCount(3);
  expect(await barriers(page, '.jp-Hp-schedules')).toEqual([]);
  await picture(page, 'schedules');

  await nightly.getByRole('button', { name: 'Show 2 more runs' }).click();
  await expect(nightly.locator('[data-state="failed"]').first()).toBeVisible();
  await nightly.getByRole('button', { name: 'Pause' }).click();
  await expect(nightly).toContainText('Not until it is resumed');
  const weekly = view.getByRole('region', { name: 'weekly' });
  await weekly.getByRole('button', { name: 'Delete…' }).click();
  const dialog = page.locator('.jp-Dialog');
  await expect(dialog).toContainText('Its jobs stay');
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await expect(weekly).toHaveCount(0);
  await nightly
    .getByRole('button', { name: /^nightly-/ })
    .first()
    .click();
  await expect(page.locator('.jp-Hp-jobhead .jp-Hp-id')).toContainText(
    /^nightly-/
  );

  await panel
    .getByRole('button', { name: 'Open the executed notebook of report' })
    .click();
  const notebook = page.locator('.jp-Notebook');
  await expect(notebook).toContainText('trained with 0.001');
  expect(existsSync(join(server.files, `${id}.ipynb`))).toBe(true);
  await picture(page, 'executed-notebook');
});
