/** A deployment under load, as the panel and the dashboard show it; a replica is killed in the dashboard. */

import { ChildProcess, spawn } from 'child_process';
import { once } from 'events';
import { join } from 'path';

import {
  barriers,
  expect,
  focusNotebook,
  JupyterServer,
  openNotebook,
  openPanel,
  picture,
  PYTHON,
  test
} from './fixtures';
import { button, Keys } from './keys';

test.use({ suite: 'serve' });

/** Start a cluster with a model, and a program that asks the first deployment until its standard input ends. */
async function asking(server: JupyterServer): Promise<ChildProcess> {
  const started = spawn(PYTHON, [join(__dirname, '..', 'tools', 'served.py')], {
    env: server.environment,
    stdio: ['pipe', 'pipe', 'inherit']
  });
  await once(started.stdout, 'data');
  return started;
}

async function end(program: ChildProcess): Promise<void> {
  const gone = once(program, 'exit');
  program.stdin!.end();
  await gone;
}

test('a deployment answers, loses a replica, and goes on', async ({
  page,
  server
}) => {
  const load = await asking(server);
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
      const curve = chart.locator('.jp-Hp-curve').first();
      await expect(chart).toBeVisible();
      // a curve that stays level has no height: Playwright calls that hidden
      await expect(curve).toHaveAttribute('d', /^M[\d. LHVM]*[LH][\d. LHVM]+$/);
    }
    await curves.scrollIntoViewIfNeeded();
    await picture(page, 'serve-curves');
  });

  await test.step('it is stopped from the panel', async () => {
    await row.getByRole('button', { name: `Stop chat` }).click();
    await page.getByRole('button', { name: 'Stop the deployment' }).click();
    await expect(row.getByText('Stopped')).toBeVisible();
  });
  await end(load);
});

test('a deployment is used with the keyboard alone', async ({
  page,
  server
}) => {
  await end(await asking(server)); // without load, nothing but the keys changes the number of replicas
  const keys = new Keys(page);
  const panel = page.locator('#jp-hyperpod-sidebar');
  const row = panel.locator('.jp-Hp-job', { hasText: 'keyed' });
  const dashboard = page.locator('.jp-Hp-dashboard');
  const dialog = page.locator('.jp-Dialog');
  await openNotebook(
    page,
    server,
    'keyed.ipynb',
    '%load_ext jupyter_hyperpod',
    '%hyperpod serve shared://tiny --replicas 1:3 --name keyed'
  );

  await test.step('the cell and its card', async () => {
    keys.view('Deployment: cell and card');
    await focusNotebook(page);
    await keys.press('Shift+Enter', 'Shift+Enter');
    const card = page.locator('.jp-Hp-card');
    await expect(card.locator('.jp-Hp-stats')).toContainText('1 of 1', {
      timeout: 90_000
    });
    await keys.press('Escape', 'ArrowUp');
    await keys.reach(button(card, 'Open the dashboard of keyed'));
    await keys.press('Enter');
    await expect(dashboard.locator('.jp-Hp-stats')).toContainText('1 of 1');
  });

  await test.step('the panel, and another number of replicas', async () => {
    keys.view('Deployment: panel');
    await keys.command('Cluster and Training Jobs');
    const allow = button(panel, /^Break something/);
    await keys.reach(allow);
    if ((await allow.getAttribute('aria-pressed')) !== 'true') {
      await keys.press('Enter'); // an earlier test of this server may have switched it on
    }
    await expect(allow).toHaveAttribute('aria-pressed', 'true');
    await keys.reach(button(row, 'Scale keyed…'));
    await keys.press('Enter');
    await expect(dialog.getByRole('slider')).toBeFocused();
    await keys.press('ArrowRight');
    await expect(dialog.getByRole('spinbutton')).toHaveValue('2');
    await keys.press('Enter');
    await expect(dialog).toHaveCount(0);
    await expect(row).toContainText('2/2', { timeout: 60_000 });
    await expect(button(row, 'Scale keyed…')).toBeFocused();
  });

  await test.step('its page: a replica is killed', async () => {
    keys.view('Deployment: page');
    await keys.reach(button(row, /^keyed$/), 'Shift+Tab');
    await keys.press('Enter');
    const members = dashboard.locator('.jp-Hp-members');
    await keys.reach(button(members, 'Kill').first());
    await keys.press('Enter');
    const incident = dashboard.locator('.jp-Hp-incident-head').first();
    await expect(incident).toContainText('replica lost');
    await expect(incident).toContainText('resumed in');
    const inside = dashboard.locator(':focus');
    await expect(inside, 'the focus stays on the page').toHaveCount(1);
    await keys.reach(dashboard.getByLabel('Logarithmic'), 'Shift+Tab');
    await keys.press('Space');
    await expect(dashboard.getByLabel('Logarithmic')).toBeChecked();
    keys.view('Deployment: its charts');
    const chart = dashboard.getByRole('slider', { name: /^Replicas, value/ });
    await keys.reach(chart);
    await expect(chart).toHaveAttribute('aria-valuetext', /: .*wanted \d/);
    const readout = dashboard.locator('.jp-Hp-readouts');
    await expect(readout).toContainText(' s');
    await keys.press('Home');
    await expect(chart).toHaveAttribute('aria-valuenow', '0');
    await expect(readout).toHaveCount(1);
    const node = dashboard.locator('.jp-Hp-lane-incidents button').first();
    await keys.reach(node, 'Shift+Tab');
    await keys.press('Enter');
  });

  await test.step('nothing is hidden from people who use other means', async () => {
    expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
    expect(await barriers(page, '#jp-hyperpod-sidebar')).toEqual([]);
  });

  await test.step('it is stopped', async () => {
    keys.view('Deployment: stop');
    await keys.command('Cluster and Training Jobs');
    await keys.reach(button(row, 'Stop keyed…'));
    await keys.press('Enter');
    await expect(dialog).toContainText('keyed');
    await keys.reach(button(dialog, 'Stop the deployment'));
    await keys.press('Enter');
    await expect(row.getByText('Stopped')).toBeVisible();
  });
  keys.keep('keyboard-serve');
});
