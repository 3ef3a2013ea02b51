/** The browser's side alone, on a recorded journal that is written while it is watched. Nothing trains here. */

import { ChildProcess } from 'child_process';
import { join } from 'path';

import { Page } from '@playwright/test';

import {
  barriers,
  expect,
  ICell,
  openNotebook,
  openPanel,
  picture,
  replay,
  SHOTS,
  test
} from './fixtures';

test.use({ suite: 'recorded' });

const MIME_TYPE = 'application/vnd.hyperpod.job.v1+json';

/** The longest that the main thread was away in two seconds of live updates, in milliseconds. */
async function longestPause(page: Page): Promise<number> {
  return page.evaluate(
    () =>
      new Promise<number>(resolve => {
        let last = performance.now();
        let worst = 0;
        const end = last + 2000;
        const tick = (now: number) => {
          worst = Math.max(worst, now - last);
          last = now;
          if (now < end) {
            requestAnimationFrame(tick);
          } else {
            resolve(worst);
          }
        };
        requestAnimationFrame(tick);
      })
  );
}

/** A cell whose output is a job. */
function jobCell(id: string): ICell {
  return {
    source: `%%hyperpod --nodes 4 --elastic 2:8\n# recorded: ${id}`,
    output: {
      [MIME_TYPE]: { job_id: id, store: '', cell_digest: '' },
      'text/plain': 'step 12/1000 · loss 4.2'
    }
  };
}

test.describe('a recorded job', () => {
  let writer: ChildProcess | undefined;

  test.afterEach(() => {
    writer?.kill();
  });

  test('moves under its cell, in the panel and on its dashboard', async ({
    page,
    server
  }) => {
    const recorded = await replay(server, '--steps', '1000', '--health');
    writer = recorded.writer;
    const cells = [recorded.id, 'gone-abcdefgh'].map(jobCell);
    await openPanel(page);
    await openNotebook(page, server, 'recorded.ipynb', ...cells);

    const card = page.locator('.jp-Hp-card');
    await expect(card.getByText('Running')).toBeVisible();
    await expect(card.getByText('4 of 4')).toBeVisible();
    await expect(card.locator('canvas')).toBeVisible();
    // The second incident happens while we watch.
    await expect(card.locator('.jp-Hp-incident')).toHaveCount(2);
    await expect(
      page.locator('.jp-Hp-sidebar .jp-Hp-stages li').last()
    ).toContainText('Resumed');

    const elsewhere = page.locator('[data-elsewhere="n1"]');
    await elsewhere.locator('summary').click();
    await expect(elsewhere).toContainText('NvidiaXid74');
    await elsewhere.scrollIntoViewIfNeeded();

    const fallback = page.locator('.jp-Hp-fallback');
    await expect(fallback).toContainText('gone-abcdefgh');
    await expect(fallback).toContainText('step 12/1000');
    await picture(page, 'recorded-notebook');

    await card.getByRole('button', { name: 'Rank 1', exact: true }).click();
    await expect(card.locator('.jp-Hp-log')).not.toContainText('rank 0 of 4');
    await expect(card.locator('.jp-Hp-log')).toContainText('rank 1 of 4');

    await card.getByRole('button', { name: /^Open the dashboard/ }).click();
    const dashboard = page.locator('.jp-Hp-dashboard');
    // Five nodes, the incidents, the axis.
    await expect(dashboard.locator('.jp-Hp-lane')).toHaveCount(7);
    await expect(dashboard).toContainText('101 MB');
    await picture(page, 'recorded-dashboard');

    await dashboard.locator('.jp-Hp-lane-incidents button').last().click();
    await expect(dashboard.locator('.jp-Hp-lane-axis')).toContainText('s');
    await picture(page, 'recorded-dashboard-incident');
    await dashboard.locator('.jp-Hp-lanes .jp-Hp-range button').click();
    for (const [button, ending] of [
      ['Picture', '.png'],
      ['Report', '.html']
    ]) {
      const [file] = await Promise.all([
        page.waitForEvent('download'),
        dashboard.getByRole('button', { name: button, exact: true }).click()
      ]);
      expect(file.suggestedFilename()).toBe(`${recorded.id}${ending}`);
      await file.saveAs(join(SHOTS, `recorded-job${ending}`));
    }
    const output = dashboard.locator('.jp-Hp-output');
    await output.getByLabel('The part of the output').selectOption('steps');
    await output.getByLabel('From').fill('100');
    await output.getByLabel('to', { exact: true }).fill('200');
    await page.keyboard.press('Enter');
    await expect(output.locator('.jp-Hp-output-foot')).toContainText(
      'All output was searched.'
    );
    await expect(output.locator('.jp-Hp-log')).not.toContainText('step 420');
    await picture(page, 'recorded-dashboard-output');

    const went = dashboard.locator('.jp-Hp-waterfall');
    await expect(went).toContainText('In committed steps');
    await expect(went.locator('tr[data-kind="lost"]').first()).toBeVisible();
    const curves = dashboard
      .locator('.jp-Hp-curves')
      .filter({ has: page.getByLabel('Logarithmic') });
    await curves.getByLabel('Logarithmic').check();
    await expect(
      curves.locator('.jp-Hp-chart .jp-Hp-curve').first()
    ).toBeVisible();
    await curves.scrollIntoViewIfNeeded();
    await picture(page, 'recorded-dashboard-curves');
    expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
    await page.theme.setTheme('JupyterLab Dark High Contrast');
    expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
    expect(await barriers(page, '#jp-hyperpod-sidebar')).toEqual([]);
    await page.screenshot({ path: join(SHOTS, 'dashboard-contrast.png') });
    await page.theme.setTheme('JupyterLab Light');
  });

  test('is in the palette, the status bar and among what is running', async ({
    page,
    server
  }) => {
    writer = (await replay(server, '--steps', '1000')).writer;
    await expect(page.locator('.jp-Hp-status')).toContainText('%');
    await page.sidebar.openTab('jp-running-sessions');
    await expect(
      page.locator('.jp-RunningSessions-item', { hasText: 'tinylm' }).first()
    ).toBeVisible();
    await page.keyboard.press('Control+Shift+c');
    await page.keyboard.type('cluster and training');
    await expect(
      page.locator('.lm-CommandPalette-item', {
        hasText: 'Cluster and Training Jobs'
      })
    ).toBeVisible();
    await page.keyboard.press('Escape');
  });

  test('has thousands of nodes, and the panel stays smooth', async ({
    page,
    server
  }) => {
    writer = (await replay(server, '--extra-nodes', '4000')).writer;
    await openPanel(page);
    const tiles = page.locator('.jp-Hp-node');
    await expect(tiles.first()).toHaveAttribute('aria-setsize', '4005');
    expect(await tiles.count()).toBeLessThan(2500); // those near what is seen
    const last = page.locator('.jp-Hp-node[aria-posinset="4005"]');
    await expect(last).toHaveCount(0);
    await page.locator('.jp-Hp-nodes').evaluate(grid => {
      grid.scrollTop = grid.scrollHeight;
    });
    await expect(last).toBeInViewport();
    const blocks = await page
      .locator('.jp-Hp-block')
      .evaluateAll(all => all.map(one => one.getBoundingClientRect().height));
    const whole = blocks.slice(0, -1); // drawn or not, all have 100 nodes
    expect(Math.max(...whole) - Math.min(...whole)).toBeLessThan(0.5);
    const filter = page.locator('.jp-Hp-nodechoice .jp-Hp-filter');
    await filter.fill('node-400');
    await expect(tiles).toHaveCount(7);
    await filter.fill('');
    await page.locator('.jp-Hp-nodechoice select').selectOption('state');
    await expect(
      page.locator('.jp-Hp-block[role="group"]').first()
    ).toHaveAttribute('aria-label', /training|spare/); // the record may be over
    await expect(tiles.first()).toHaveAttribute('aria-setsize', '4005');
    // A machine that is busy with other things holds up one look, not all of them.
    await expect
      .poll(() => longestPause(page), { timeout: 60_000 })
      .toBeLessThan(500);
    await picture(page, 'recorded-4000-nodes');
  });
});
