/** A deployment under load, as the panel and the dashboard show it; a replica is killed in the dashboard. */

import { spawn } from 'child_process';
import { once } from 'events';
import { join } from 'path';

import {
  expect,
  openNotebook,
  openPanel,
  picture,
  PYTHON,
  test
} from './fixtures';

test.use({ suite: 'serve' });

test('a deployment answers, loses a replica, and goes on', async ({
  page,
  server
}) => {
  const asking = spawn(PYTHON, [join(__dirname, '..', 'tools', 'served.py')], {
    env: server.environment,
    stdio: ['pipe', 'pipe', 'inherit']
  });
  await once(asking.stdout, 'data');
  await openNotebook(
    page,
    server,
    'serve.ipynb',
    '%load_ext jupyter_hyperpod',
    '%hyperpod serve shared://tiny --replicas 2:4 --name chat'
  );
  await openPanel(page);
  const row = page.locator('.jp-Hp-job', { hasText: 'chat' });
  const card = page.locator('.jp-Hp-card');

  await test.step('a cell serves a model, and shows it', async () => {
    await page.menu.clickMenuItem('Run>Run All Cells');
    await expect(card.locator('.jp-Hp-stats')).toContainText('2 of 2', {
      timeout: 90_000
    });
    await expect(page.getByText('ask it:').first()).toBeVisible();
  });

  await test.step('the panel tells its load', async () => {
    await expect(row).toContainText(/2\/2 · [\d.]+ requests\/s/);
    await expect(row.getByRole('progressbar')).toHaveCount(0);
  });

  await test.step('what is known of a node fits the panel', async () => {
    await page.getByRole('button', { name: 'Break something' }).click();
    await page.locator('.jp-Hp-node[data-state="answering"]').first().click();
    const detail = page.locator('.jp-Hp-detail');
    await expect(detail).toContainText('answering');
    const kill = detail.getByRole('button', { name: 'Kill node' });
    const hang = detail.getByRole('button', { name: 'Hang node' });
    const [left, right] = [await kill.boundingBox(), await hang.boundingBox()];
    expect(left!.y).toBe(right!.y);
    await expect(page.locator('.jp-Hp-mount').first()).toBeVisible();
    await picture(page, 'serve-panel');
  });

  await test.step('a replica is killed, others answer', async () => {
    await row.getByRole('button', { name: 'chat', exact: true }).click();
    const members = page.locator('.jp-Hp-dashboard .jp-Hp-members');
    await members.getByRole('button', { name: 'Kill' }).first().click();
    const incident = page.locator('.jp-Hp-dashboard .jp-Hp-incident-head');
    await expect(incident.first()).toContainText('replica lost');
    await expect(incident.first()).toContainText('resumed in');
    const stats = page.locator('.jp-Hp-dashboard .jp-Hp-stats');
    await expect(stats).toContainText('2 of 2');
    await expect(stats.getByText('Failed').locator('..')).toContainText('0');
    await picture(page, 'serve-dashboard');
    const curves = page.locator('.jp-Hp-dashboard .jp-Hp-curves');
    for (const name of ['Requests per second', 'Latency', 'Replicas']) {
      const chart = curves.locator('.jp-Hp-chart', { hasText: name });
      await expect(chart.locator('.jp-Hp-curve').first()).toBeVisible();
    }
    await curves.scrollIntoViewIfNeeded();
    await picture(page, 'serve-curves');
  });

  await test.step('it is stopped from the panel', async () => {
    await row.getByRole('button', { name: `Stop chat` }).click();
    await page.getByRole('button', { name: 'Stop the deployment' }).click();
    await expect(row.getByText('Stopped')).toBeVisible();
  });
  asking.stdin.end();
  await once(asking, 'exit');
});
