/** A cell that raises: its card and its dashboard tell where, and run it again. */

import type { Locator } from '@playwright/test';

import { expect, openNotebook, openPanel, picture, test } from './fixtures';

test.use({ suite: 'failing' });

const CELL = `%%hyperpod --nodes 2 --name raises
import torch
import jupyter_hyperpod as hp

def shape(tensor):
    return tensor.reshape(3, 3)

print("before", flush=True)
shape(torch.zeros(4))
`;

async function box(of: Locator) {
  return (await of.boundingBox())!;
}

test('a cell that raises keeps its card and its dashboard', async ({
  page,
  server
}) => {
  const card = page.locator('.jp-Hp-card');
  const raised = card.locator('[data-raised]');
  await openNotebook(
    page,
    server,
    'raises.ipynb',
    '%load_ext jupyter_hyperpod',
    CELL
  );
  await openPanel(page);

  await test.step('the card shows the traceback with the line of the cell', async () => {
    await page.menu.clickMenuItem('Run>Run All Cells');
    await expect(card.getByText('Failed')).toBeVisible({ timeout: 120_000 });
    await expect(card.getByRole('alert')).toContainText(/rank \d on node-\d/);
    await expect(card.getByRole('alert')).toContainText('RuntimeError');
    await expect(raised, 'the kernel prints it below').toBeHidden();
    await card.getByText('Traceback', { exact: true }).click();
    await expect(raised).toContainText('return tensor.reshape(3, 3)');
    await expect(raised).toContainText('line 6');
    await expect(page.locator('.jp-Hp-joberror').first()).toContainText(
      'shape'
    );
    await expect(card.getByRole('progressbar')).toHaveCount(0);
    const row = page.locator('.jp-Hp-job').first();
    const between = async () => {
      const name = await box(row.locator('.jp-Hp-name'));
      const error = await box(row.locator('.jp-Hp-joberror'));
      return error.y - name.y - name.height;
    };
    await expect.poll(between, 'no empty row').toBeLessThan(16);
    const idle = page.locator('.jp-Hp-idle');
    const words = idle.locator('.jp-Hp-small');
    await words.evaluate(text => {
      (text.firstChild as Text).data = 'Idle: ends by itself in 3 h 59 min';
    });
    const [told, keep] = await Promise.all([
      box(words),
      box(idle.getByRole('button', { name: 'Keep' }))
    ]);
    const middle = (of: typeof told) => of.y + of.height / 2;
    expect(Math.abs(middle(keep) - middle(told)), 'beside it').toBeLessThan(4);
    await picture(page, 'failing-notebook');
  });

  await test.step('the dashboard shows the same', async () => {
    await card.getByRole('button', { name: /^Open the dashboard/ }).click();
    const dashboard = page.locator('.jp-Hp-dashboard');
    await expect(dashboard.locator('[data-raised]')).toContainText('reshape');
    await expect(dashboard).toContainText('before');
    await page.setViewportSize({ width: 900, height: 960 });
    const values = dashboard.locator('.jp-Hp-stats .jp-Hp-value');
    const bottoms = await values.evaluateAll(all =>
      all.map(one => {
        const text = document.createRange();
        text.selectNodeContents(one.firstChild!);
        return Math.round(text.getBoundingClientRect().bottom);
      })
    );
    expect(new Set(bottoms.slice(0, 4)).size, 'on one line').toBe(1);
    await picture(page, 'failing-narrow');
    await page.setViewportSize({ width: 1440, height: 960 });
    await picture(page, 'failing-dashboard');
  });

  const jobOf = async () =>
    (await card.locator('.jp-Hp-id').first().textContent()) ?? '';

  await test.step('Rerun in the card runs its cell', async () => {
    await page.getByRole('tab', { name: 'raises.ipynb' }).click();
    const before = await jobOf();
    await card.getByRole('button', { name: 'Rerun' }).click();
    await expect.poll(jobOf, { timeout: 60_000 }).not.toBe(before);
    await expect(raised).toBeAttached({ timeout: 60_000 });
  });

  await test.step('Rerun on the dashboard opens the notebook and runs the cell', async () => {
    const before = await jobOf();
    await page.notebook.save();
    await page.notebook.close();
    await expect(card).toHaveCount(0);
    await page
      .locator('.jp-Hp-dashboard')
      .getByRole('button', { name: 'Rerun' })
      .click();
    await expect.poll(jobOf, { timeout: 60_000 }).not.toBe(before);
    await expect(raised).toBeAttached({ timeout: 60_000 });
  });
});
