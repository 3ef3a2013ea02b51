/**
 * Every view, used with the keyboard alone: no pointer moves here. What was pressed, and where that led, is kept in
 * test-output/ui/keyboard.txt. Deployments are in serve.spec.ts, sweeps in sweep.spec.ts.
 */

import { mkdirSync, writeFileSync } from 'fs';
import { dirname, join } from 'path';

import {
  barriers,
  expect,
  focusNotebook,
  openNotebook,
  replay,
  test
} from './fixtures';
import { button, Keys } from './keys';
import { kubeconfig } from './kubeconfig';

test.use({ suite: 'keyboard' });

test.describe.serial('with the keyboard alone', () => {
  let keys: Keys;

  test.beforeEach(({ page, server }) => {
    keys = new Keys(page);
    const write = (path: string, text: string) => {
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, text);
    };
    write(join(server.home, '.kube', 'config'), kubeconfig('one', 'two'));
    write(join(server.store, 'shared', 'runs', 'notes.md'), '# A run\n');
  });

  test.afterEach(() => keys.keep('keyboard'));

  test('the panel, the choice of a cluster and a job are used', async ({
    page,
    server,
    noise
  }) => {
    const { writer } = await replay(server, '--steps', '5000');
    const panel = page.locator('#jp-hyperpod-sidebar');
    await page.reload(); // the panel asks for clusters once per minute, and did before their file was written
    try {
      await test.step('the panel', async () => {
        keys.view('Panel');
        await keys.command('Cluster and Training Jobs');
        await expect(panel).toBeVisible();
        await keys.reach(button(panel, /^Break something/));
        await keys.press('Enter');
        await keys.reach(panel.locator('[data-node="node-1"]'));
        await keys.press('Enter');
        await expect(panel.locator('.jp-Hp-detail')).toContainText('node-1');
        await keys.press('ArrowRight');
        const detail = panel.locator('.jp-Hp-detail');
        await expect(detail).toContainText('node-2');
        await keys.reach(button(detail, 'Kill node'));
        await keys.reach(button(panel, /^Break something/), 'Shift+Tab');
        await keys.press('Enter');
        const storage = button(panel, /^Storage/);
        await keys.reach(storage);
        await keys.press('Space');
        await expect(storage).toHaveAttribute('aria-expanded', 'false');
        await keys.press('Space');
      });

      await test.step('the choice of a cluster', async () => {
        keys.view('Choice of a cluster');
        const picker = panel.locator('.jp-Hp-picker');
        const chosen = picker.getByRole('radio', { checked: true });
        await keys.reach(chosen, 'Shift+Tab');
        await keys.press('ArrowDown');
        await expect(picker.getByRole('radio').nth(1)).toBeChecked();
        expect(await barriers(page, '.jp-Hp-picker')).toEqual([]);
        await keys.press('ArrowUp');
        await expect(picker.getByRole('radio').first()).toBeChecked();
      });

      await test.step('the dashboard of a job', async () => {
        keys.view('Dashboard');
        const job = panel.locator('.jp-Hp-job', { hasText: 'Running' });
        await keys.reach(job.locator('button.jp-Hp-name'));
        await keys.press('Enter');
        const dashboard = page.locator('.jp-Hp-dashboard');
        const incident = dashboard.locator('.jp-Hp-lane-incidents button');
        await expect(incident.first()).toBeVisible();
        await keys.reach(incident.first());
        await keys.press('Enter');
        await keys.reach(dashboard.getByLabel('Logarithmic'));
        await keys.press('Space');
        await expect(dashboard.getByLabel('Logarithmic')).toBeChecked();
        await keys.reach(dashboard.getByLabel('The part of the output'));
        await keys.press('ArrowDown');
      });
    } finally {
      noise.ignore = true; // what the recorded job lacks, once it is no longer written
      writer.kill();
    }
  });

  test('the live card, the charts of resources and the menus of "Break something" are used', async ({
    page,
    server,
    noise
  }) => {
    const { id, writer } = await replay(server, '--steps', '5000', '--samples');
    const output = {
      'application/vnd.hyperpod.job.v1+json': { job_id: id, store: '' },
      'text/plain': 'a job'
    };
    await openNotebook(page, server, 'card.ipynb', {
      source: 'print("hello")',
      output
    });
    const dashboard = page.locator('.jp-Hp-dashboard');
    const dialog = page.locator('.jp-Dialog');
    const menu = page.locator('.lm-Menu');
    try {
      await test.step('the card below a cell', async () => {
        keys.view('Live card');
        const card = page.locator('.jp-Hp-card');
        await expect(card.getByText('Running')).toBeVisible();
        await focusNotebook(page);
        await keys.press('Escape');
        await keys.reach(button(card, 'Scale tinylm…'));
        await keys.press('Enter');
        await expect(dialog.getByRole('slider')).toBeFocused();
        await keys.press('Escape');
        await expect(button(card, 'Scale tinylm…')).toBeFocused();
        const loss = card.getByRole('slider', { name: /^Loss, value by/ });
        await keys.reach(loss);
        await expect(card.locator('.jp-Hp-readout')).toContainText('step');
        await keys.press('Home');
        await expect(card.locator('.jp-Hp-readout')).toContainText('step 1 ');
        await keys.press('ArrowRight');
        await expect(loss).toHaveAttribute('aria-valuenow', '1');
        await keys.reach(card.locator('.jp-Hp-incident-head').first());
        await keys.press('Enter');
        expect(await barriers(page, '.jp-Hp-card')).toEqual([]);
        const open = button(card, 'Open the dashboard of tinylm');
        await keys.reach(open, 'Shift+Tab');
        await keys.press('Enter');
      });

      await test.step('what its processes use', async () => {
        keys.view('Resources');
        const resources = dashboard.locator('.jp-Hp-curves', {
          has: page.getByRole('heading', { name: 'Resources' })
        });
        const cpu = resources.getByRole('slider', { name: /^CPU, of 8 cores/ });
        await keys.reach(cpu);
        await expect(resources.locator('.jp-Hp-readouts')).toContainText('%');
        await keys.press('Home', 'ArrowRight', 'PageUp');
        await expect(cpu).toHaveAttribute(
          'aria-valuetext',
          /^\d.*: node-1 [\d.]+ %, /
        );
        const range = resources.getByRole('group', { name: /^Seconds/ });
        await keys.reach(range.getByLabel('From'), 'Shift+Tab');
        await keys.type('5');
        await keys.press('Tab');
        await keys.type('20');
        await keys.press('Enter');
        const most = async () =>
          Number(await cpu.getAttribute('aria-valuemax'));
        await expect.poll(most, 'fifteen seconds').toBeLessThanOrEqual(3);
        await keys.reach(button(range, 'All'));
        await keys.press('Enter');
        await expect.poll(most).toBeGreaterThan(3);
        await expect(dashboard.locator(':focus'), 'is kept').toHaveCount(1);
        expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
      });

      await test.step('what can be broken', async () => {
        keys.view('Menus of "Break something"');
        await keys.command('Cluster and Training Jobs');
        const panel = page.locator('#jp-hyperpod-sidebar');
        const allow = button(panel, /^Break something/);
        await keys.reach(allow);
        await keys.press('Enter');
        await expect(allow).toHaveAttribute('aria-pressed', 'true');
        await keys.reach(panel.locator('[data-node="node-1"]'));
        await keys.press('Enter');
        const other = panel.locator('.jp-Hp-detail [aria-haspopup="menu"]');
        await keys.reach(other);
        await keys.press('Enter');
        await expect(menu).toContainText('node-1 · partition');
        await keys.press('ArrowDown');
        await expect(menu, 'arrows choose nothing').toBeVisible();
        expect(await barriers(page, '.lm-Menu')).toEqual([]);
        await keys.press('Escape');
        await expect(other).toBeFocused();
        await keys.reach(
          button(panel.locator('.jp-Hp-detail'), 'tinylm').first(),
          'Shift+Tab'
        );
        await keys.press('Enter');
        const lane = dashboard.locator('.jp-Hp-lane [aria-haspopup="menu"]');
        await keys.reach(lane.first());
        await keys.press('Enter');
        await expect(menu).toContainText(/rank 0 · kill/);
        await keys.press('Escape');
        await expect(lane.first()).toBeFocused();
        const member = dashboard.locator(
          '.jp-Hp-members [aria-haspopup="menu"]'
        );
        await keys.reach(member.first());
        await keys.press('Space');
        await expect(menu).toContainText(/rank 0 · throttle/);
        await keys.press('ArrowDown', 'Escape');
        await expect(member.first()).toBeFocused();
        await keys.command('Cluster and Training Jobs');
        await keys.reach(allow);
        await keys.press('Enter');
      });
    } finally {
      noise.ignore = true; // what the recorded job lacks, once it is no longer written
      writer.kill();
    }
  });

  test('the jobs are shared', async ({ page, server }) => {
    keys.view('Sharing');
    const group = server
      .python('-c', 'import grp, os; print(grp.getgrgid(os.getgid()).gr_name)')
      .trim();
    const row = page.locator('#jp-hyperpod-sidebar .jp-Hp-sharing');
    const dialog = page.locator('.jp-Dialog');
    const share = async (read: string) => {
      await keys.reach(button(row, 'Share…'));
      await keys.press('Enter');
      const field = dialog.getByLabel('Group that reads');
      await expect(field).toBeFocused();
      await keys.press('Control+a', 'Delete');
      if (read) {
        await keys.type(read);
      }
      await keys.reach(dialog.getByLabel('Group that operates'));
      expect(await barriers(page, '.jp-Dialog')).toEqual([]);
    };
    await keys.command('Cluster and Training Jobs');
    await share(group);
    await keys.reach(
      dialog.getByRole('button', { name: 'Share', exact: true })
    );
    await keys.press('Enter');
    await expect(row).toContainText(`the group ${group} reads`);
    await expect(button(row, 'Share…')).toBeFocused();
    await share('no-such-group');
    await keys.press('Escape');
    await expect(dialog).toHaveCount(0);
    await expect(button(row, 'Share…')).toBeFocused();
    await share('');
    await keys.press('Control+Enter');
    await expect(row).toContainText('only you can see');
  });

  test('the table of runs, a comparison and a promotion with its environment are used', async ({
    page,
    server
  }) => {
    server.python('ui-tests/tools/runs.py', server.store);
    await test.step('the table of runs, the comparison, and a promotion with its environment', async () => {
      keys.view('Table of runs');
      await keys.command('Table of Runs');
      const table = page.locator('.jp-Hp-runs');
      await keys.reach(table.getByRole('searchbox'));
      await keys.type('tag:baseline');
      await expect(table.getByRole('status')).toContainText('2 of');
      await keys.reach(table.locator('[data-index="0"]'));
      await keys.press('Space', 'ArrowDown');
      const second = table.locator('[data-index="1"]');
      await expect(second).toBeFocused();
      await keys.press('Space');
      await expect(second).toHaveAttribute('aria-selected', 'true');
      keys.view('Comparison');
      await keys.reach(button(table, /^Compare/), 'Shift+Tab');
      await keys.press('Enter');
      const view = page.locator('.jp-Hp-comparison');
      await expect(view.locator('.jp-Hp-curve').first()).toBeVisible();
      await keys.reach(view.getByRole('slider', { name: 'Smoothing' }));
      await keys.press('ArrowRight');
      await expect(view.locator('.jp-Hp-raw').first()).toBeVisible();
      const difference = view.locator('details summary').first();
      await keys.reach(difference);
      keys.view('Promotion, with what differs in the environment');
      await keys.command('Table of Runs');
      await keys.reach(table.locator('[data-index="1"]'));
      await keys.press('Space');
      await keys.reach(button(table, 'Promote…'), 'Shift+Tab');
      await keys.press('Enter');
      const form = page.locator('.jp-Hp-promote');
      await keys.reach(form.getByLabel('Nodes'));
      await expect(form.locator('.jp-Hp-changes')).toBeVisible();
      await keys.reach(form.getByLabel(/^Submit it although/));
      await keys.press('Space', 'Escape');
      await expect(form).toHaveCount(0);
    });
  });

  test('schedules, the planner, files of mounts and the form "Run on cluster" are used', async ({
    page,
    server
  }) => {
    server.python('ui-tests/tools/schedules.py', server.store, server.files);
    const dialog = page.locator('.jp-Dialog');
    await test.step('schedules', async () => {
      keys.view('Schedules');
      await keys.command('Schedules');
      const view = page.locator('.jp-Hp-schedules');
      const nightly = view.getByRole('region', { name: 'nightly' });
      await keys.reach(button(nightly, 'Pause'));
      await keys.press('Enter');
      await expect(nightly).toContainText('Not until it is resumed');
      await keys.reach(button(nightly, 'Delete…'));
      await keys.press('Enter');
      await expect(dialog).toContainText('Its jobs stay');
      await keys.press('Escape');
      await expect(dialog).toHaveCount(0);
    });

    await test.step('the planner', async () => {
      keys.view('Planner');
      await keys.command('Failure Planner');
      const planner = page.locator('.jp-Hp-planner');
      const slider = planner.getByLabel('Recovery by hand');
      await keys.reach(slider);
      const before = await slider.inputValue();
      await keys.press('ArrowRight');
      await expect(slider).not.toHaveValue(before);
      await keys.reach(planner.getByLabel('A failure during a repair'));
      await keys.press('ArrowDown');
      await keys.reach(button(planner, 'Simulate'));
      await keys.press('Enter');
      await expect(planner.locator('.jp-Hp-plan')).toContainText('from seed 0');
      expect(await barriers(page, '.jp-Hp-planner')).toEqual([]);
    });

    await test.step('files of mounts', async () => {
      keys.view('Files');
      await keys.command('Files of Mounts');
      const files = page.locator('#hyperpod-files');
      const item = (name: string) =>
        files.locator('.jp-DirListing-item', {
          has: page.getByText(name, { exact: true })
        });
      await expect(item('shared')).toBeVisible();
      await keys.reach(
        files.locator('.jp-DirListing-content [tabindex="0"]').first()
      );
      await keys.press('ArrowDown', 'Enter');
      await expect(item('runs')).toBeVisible();
    });

    await test.step('the form "Run on cluster"', async () => {
      keys.view('Run on cluster');
      await openNotebook(page, server, 'plain.ipynb', 'print("hello")');
      await focusNotebook(page);
      await keys.press('Control+Alt+Enter');
      const form = page.locator('.jp-Hp-rundialog');
      await expect(form.getByLabel('Nodes')).toBeFocused();
      await keys.press('Control+a');
      await keys.type('2');
      await keys.reach(form.getByRole('checkbox', { name: 'Elastic' }));
      await keys.press('Space');
      await expect(form.locator('.jp-Hp-line code')).toHaveText(
        '%%hyperpod --nodes 2 --elastic 1:2'
      );
      await keys.reach(form.getByLabel('Priority'));
      await keys.reach(form.locator('summary', { hasText: 'More options' }));
      await keys.press('Enter');
      await keys.reach(button(form, 'Dry run'));
      await keys.press('Escape');
      await expect(form).toBeHidden();
    });
  });
});
