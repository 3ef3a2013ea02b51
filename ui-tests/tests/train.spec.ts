/**
 * The whole slice on real parts: a cell trains on a cluster of processes, a node is killed from the panel, and the
 * output under the cell stays alive through the loss of the node, the kernel, the page and the server.
 */

import {
  barriers,
  expect,
  openNotebook,
  openPanel,
  picture,
  test
} from './fixtures';

test.use({ suite: 'train' });

const CELL = `%%hyperpod --nodes 4 --elastic 2:5 --name browser
import os, time
import torch
from torch import nn
import jupyter_hyperpod as hp

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(256, 64), nn.Dropout(0.1), nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = hp.TokenDataset(os.__file__, sequence_length=64)

with hp.Session(model, optimizer, data, global_batch=32, micro_batch=4, seed=0) as session:
    for step in session.steps(3000):
        def loss_fn(batch):
            inputs, targets = batch
            return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss = step.run(loss_fn)
        time.sleep(0.1)
        if step.number % 10 == 0:
            print(f"step {step.number} loss {float(loss):.4f}", flush=True)
`;

test('a cell trains, loses a node, and its output outlives everything', async ({
  page,
  server,
  noise
}) => {
  const card = page.locator('.jp-Hp-card');
  const stepOf = async (): Promise<number> => {
    const bar = card.locator('.jp-Hp-jobprogress').getByText(/^step /);
    const text = (await bar.textContent()) ?? '';
    return Number(text.split('/')[0].replace(/\D/g, ''));
  };
  const moves = async () => {
    const before = await stepOf();
    await expect.poll(stepOf, { timeout: 60_000 }).toBeGreaterThan(before);
  };

  await openNotebook(
    page,
    server,
    'train.ipynb',
    '%load_ext jupyter_hyperpod',
    CELL
  );
  await openPanel(page);

  await test.step('the cell trains on four nodes', async () => {
    await page.menu.clickMenuItem('Run>Run All Cells'); // it streams until its job ends
    await expect(card).toBeVisible({ timeout: 90_000 });
    await expect(card.getByText('Running')).toBeVisible({ timeout: 90_000 });
    await expect(card.getByText('4 of 4')).toBeVisible({ timeout: 60_000 });
    const nodes = page.locator('.jp-Hp-node:not([data-spare])');
    await expect(nodes).toHaveCount(4);
    await moves();
  });

  await test.step('a node is killed from the panel, and the incident is told by stages', async () => {
    await page.locator('.jp-Hp-node[data-node="node-2"]').click();
    const detail = page.locator('.jp-Hp-detail');
    await expect(detail).toContainText('rank');
    await expect(detail.locator('.jp-Hp-faults')).toHaveCount(0);
    await page.getByRole('button', { name: /^Break something/ }).click();
    await detail.getByRole('button', { name: 'Kill node' }).click();
    const incident = page.locator('.jp-Hp-sidebar .jp-Hp-incident').first();
    await expect(incident).toContainText('node-2');
    await expect(
      incident.locator('[data-stage="detected"]').last()
    ).toBeVisible();
    await expect(incident.locator('li[data-stage="resumed"]')).toBeVisible();
    await expect(card.locator('.jp-Hp-incident')).toContainText('resumed in');
    await expect(card.getByText('4 of 4')).toBeVisible();
    await moves();
    await card.evaluate(element => element.scrollIntoView({ block: 'start' }));
    await picture(page, 'train-killed-node');
    expect(await barriers(page, '.jp-Hp-card')).toEqual([]);
    // The kernel prints the same text below: the card shows it on request.
    await expect(card.locator('.jp-Hp-text')).toHaveCount(0);
    await card.getByRole('button', { name: 'Output' }).click();
    await expect(card.locator('.jp-Hp-text').first()).toContainText('step');
  });

  await test.step('the kernel goes, the output stays', async () => {
    await page.menu.clickMenuItem('Kernel>Restart Kernel…');
    await page.getByRole('button', { name: 'Confirm Kernel Restart' }).click();
    await expect(card.getByText('Running')).toBeVisible();
    await moves();
    await page.menu.clickMenuItem('Kernel>Shut Down Kernel');
    await expect(page.getByText('No Kernel').first()).toBeVisible();
    await moves();
    await page.notebook.save();
  });

  await test.step('the page is loaded again, the output is live again', async () => {
    await page.reload({ waitForIsReady: false } as object);
    await expect(card.getByText('Running')).toBeVisible({ timeout: 60_000 });
    await moves();
  });

  await test.step('the server is restarted, the output is live again', async () => {
    noise.ignore = true;
    // JupyterLab's own dialogs, whenever they come.
    await page.addLocatorHandler(
      page.getByText('Server Connection Error'),
      () => page.getByRole('button', { name: 'Close', exact: true }).click()
    );
    await page.addLocatorHandler(
      page.locator('dialog[aria-label^="Cannot open"]'),
      () => page.getByRole('button', { name: 'Dismiss', exact: true }).click()
    );
    await server.stop();
    await expect(card.getByText('Trying again')).toBeVisible();
    await server.start();
    await expect(card.getByText('Trying again')).toBeHidden({
      timeout: 60_000
    });
    await moves();
    noise.ignore = false;
  });

  await test.step('the dashboard shows who was where', async () => {
    await card.getByRole('button', { name: /^Open the dashboard/ }).click();
    const lanes = page.locator('.jp-Hp-lanes');
    await expect(lanes.locator('[data-role="lost"]').last()).toBeVisible();
    await expect(lanes.locator('.jp-Hp-phases').first()).toBeVisible();
    await expect(
      lanes.getByRole('img', { name: /waits for the slowest \d+ %/ }).first()
    ).toBeVisible();
    const resources = page.locator('.jp-Hp-dashboard .jp-Hp-curves', {
      has: page.getByRole('heading', { name: 'Resources' })
    });
    for (const quantity of [/^CPU, of \d/, /^Memory, of /]) {
      const chart = resources.locator('.jp-Hp-chart', { hasText: quantity });
      const drawn = () => chart.locator('.jp-Hp-curve').count();
      await expect.poll(drawn).toBeGreaterThanOrEqual(4); // a spare has one, too
    }
    await expect(resources.locator('.jp-Hp-chart')).toHaveCount(2);
    await expect(resources).toContainText('The network is not sampled');
    const name = lanes.getByRole('button', { name: 'node-3', exact: true });
    await name.focus();
    await page.keyboard.press('Enter');
    const menu = page.locator('.lm-Menu');
    await expect(menu).toContainText(/rank \d · kill/);
    expect(await barriers(page, '.lm-Menu')).toEqual([]);
    await page.keyboard.press('Escape');
    await expect(name).toBeFocused();
    const levels = page.getByRole('group', { name: /these levels/ });
    await levels.getByRole('button', { name: 'Debug' }).click();
    await expect(page.locator('.jp-Hp-dashboard')).toContainText(
      'No line has this level.'
    );
    await levels.getByRole('button', { name: 'Other' }).click();
    await expect(page.locator('.jp-Hp-dashboard .jp-Hp-log')).toContainText(
      'loss'
    );
    expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
    await picture(page, 'train-dashboard');
    await page.getByRole('tab', { name: 'train.ipynb' }).click();
  });

  await test.step('the job is stopped from the panel', async () => {
    const row = page.locator('.jp-Hp-job').first();
    await row.getByRole('button', { name: 'Stop browser' }).click();
    await page.getByRole('button', { name: 'Stop the job' }).click();
    await expect(card.getByText('Stopped')).toBeVisible();
    await expect(card.locator('.jp-Hp-incident')).toContainText('node-2');
  });
});
