/** All output of a job in the card and on its dashboard: scrolled back, searched, in bounded memory. */

import { join } from 'path';

import { Locator } from '@playwright/test';

import { expect, openNotebook, picture, test } from './fixtures';

test.use({ suite: 'output' });

const MIME_TYPE = 'application/vnd.hyperpod.job.v1+json';
const MOST_LINES = 3100;

/** The numbers of the lines in a box, from the first to the last. */
async function numbers(log: Locator): Promise<number[]> {
  const lines = await log.locator('.jp-Hp-text').allTextContents();
  return lines.map(line => Number(line.split(' ')[1]));
}

async function scroll(log: Locator, to: 'top' | 'end'): Promise<void> {
  await log.evaluate((element, end) => {
    element.scrollTop = end ? element.scrollHeight : 0;
  }, to === 'end');
}

test('is read back to its first line and searched', async ({
  page,
  server
}) => {
  const tool = join(__dirname, '..', 'tools', 'printed.py');
  const id = server.python(tool, server.store).trim();
  await openNotebook(page, server, 'printed.ipynb', {
    source: '%%hyperpod --nodes 2',
    output: {
      [MIME_TYPE]: { job_id: id, store: '', cell_digest: '' },
      'text/plain': 'printed'
    }
  });
  const card = page.locator('.jp-Hp-card');
  await expect(card.locator('.jp-Hp-log')).toContainText('step 14999');
  await card.getByRole('button', { name: /^Open the dashboard/ }).click();

  const dashboard = page.locator('.jp-Hp-dashboard');
  const log = dashboard.locator('.jp-Hp-log');
  await expect(log).toContainText('step 14999'); // beside the journal
  await log.scrollIntoViewIfNeeded();
  await picture(page, 'output-newest');

  let oldest = 14_990;
  for (let pages = 0; pages < 12; pages++) {
    await scroll(log, 'top');
    await expect
      .poll(async () => (await numbers(log))[0])
      .toBeLessThan(oldest - 10);
    const found = await numbers(log);
    oldest = found[0];
    expect(found.length).toBeLessThan(MOST_LINES);
    expect(found).toEqual([...found].sort((one, other) => one - other));
    expect(found.length).toBeGreaterThanOrEqual(
      2 * (found[found.length - 1] - oldest) - 1
    );
    // The reader stays where they were: the place is not at the top any more.
    await expect
      .poll(() => log.evaluate(element => element.scrollTop))
      .toBeGreaterThan(100);
  }
  await expect(
    dashboard.getByRole('button', { name: 'Newest output' })
  ).toBeVisible();
  await picture(page, 'output-older');
  const before = await numbers(log);
  await scroll(log, 'end');
  await expect
    .poll(async () => (await numbers(log)).pop())
    .toBeGreaterThan(before[before.length - 1]);

  const search = dashboard.getByRole('searchbox');
  await search.fill('step 00012 ');
  await expect(log.locator('.jp-Hp-text')).toHaveCount(2);
  await expect(log.locator('mark').first()).toHaveText('step 00012 ');
  await expect(dashboard.getByRole('status').last()).toBeVisible();
  await picture(page, 'output-search');
  await search.fill('no such words');
  await expect(dashboard).toContainText('No line has this text.');
  await dashboard.getByRole('button', { name: 'Newest output' }).click();
  await expect(log).toContainText('step 14999');
  await dashboard.getByRole('button', { name: 'Rank 1', exact: true }).click();
  await expect(log).not.toContainText('of rank 0');
  await dashboard.getByRole('button', { name: 'Older output' }).click();
  await expect
    .poll(async () => (await numbers(log)).length)
    .toBeGreaterThan(149);
  await expect(log).not.toContainText('of rank 0');
});
