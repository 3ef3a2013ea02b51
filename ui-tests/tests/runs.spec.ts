/** The table of runs: sorted, filtered, written on, archived and deleted; light and dark, and without barriers. */

import { readFileSync } from 'fs';

import { Page } from '@playwright/test';

import { barriers, expect, openPanel, picture, test } from './fixtures';

test.use({ suite: 'runs' });

const TABLE = '.jp-Hp-runs';

async function command(page: Page, name: string, args = {}): Promise<void> {
  await page.evaluate(
    ([id, given]) =>
      (window as any).jupyterapp.commands
        .execute(id as string, given as any)
        .then(() => null),
    [name, args] as const
  );
}

/** The names in the table, from above. */
function names(page: Page): Promise<string[]> {
  return page
    .locator(`${TABLE} .jp-Hp-gridbody [data-sticky="name"] .jp-Hp-link`)
    .allTextContents();
}

test.describe.serial('the table of runs', () => {
  let ids: string[];

  test.beforeAll(({ server }) => {
    const tool = 'ui-tests/tools/runs.py';
    ids = server.python(tool, server.store, '--many', '120').trim().split('\n');
  });

  test('opens from the panel, sorts and filters', async ({ page }) => {
    await openPanel(page);
    await page
      .locator('#jp-hyperpod-sidebar')
      .getByRole('button', { name: 'All runs in one table' })
      .click();
    const table = page.locator(TABLE);
    await expect(table.getByRole('status')).toContainText('127 runs');
    const drawn = await table.locator('[role="row"]').count();
    expect(drawn, 'only what is on the screen is drawn').toBeLessThan(80);
    expect((await names(page)).slice(0, 3)).toEqual([
      'tinylm',
      'tinylm',
      'tinylm'
    ]);
    // The goodput comes a moment later than the rows.
    await expect(
      table.locator('[data-index="0"] [role="gridcell"]', { hasText: '%' })
    ).toBeVisible();
    expect(await barriers(page, TABLE)).toEqual([]);
    const tag = table.locator('.jp-Hp-tag', { hasText: 'baseline' });
    await expect(tag.first(), 'the only tag is seen').toHaveCSS('opacity', '1');
    await picture(page, 'runs');

    const filter = table.getByRole('searchbox');
    await filter.fill('tag:sweep -state:failed');
    await expect(table.getByRole('status')).toContainText('2 of 127 runs');
    await filter.fill('optim.sgd tinylm-');
    await expect(table.getByRole('status')).toContainText('1 of 127 runs');
    expect(await names(page), 'found in its code').toEqual(['tinylm-sgd']);
    await filter.fill('tinylm steps>=400');
    await table.getByRole('button', { name: 'Loss' }).click();
    const head = table.locator('[role="columnheader"]', { hasText: 'Loss' });
    await expect(head).toHaveAttribute('aria-sort', 'descending');
    await table.getByRole('button', { name: 'Loss' }).click();
    await expect(head).toHaveAttribute('aria-sort', 'ascending');
    const first = table.locator('[data-index="0"]');
    await expect(first).toContainText('best');
    await filter.fill('nothing-like-this');
    await expect(table.getByRole('status')).toContainText('0 of 127 runs');
  });

  test('is used with the keyboard alone, and written on in place', async ({
    page,
    noise
  }) => {
    await command(page, 'hyperpod:open-runs');
    const table = page.locator(TABLE);
    await table.getByRole('searchbox').fill('name:tinylm');
    await expect(table.getByRole('status')).toContainText('6 of 127 runs');
    await table.locator('[data-index="0"]').focus();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Space');
    await expect(table.locator('[data-index="1"]')).toBeFocused();
    await expect(table.locator('[data-index="1"]')).toHaveAttribute(
      'aria-selected',
      'true'
    );
    await page.keyboard.press('Space');

    const row = table.locator('[data-index="2"]');
    await row.getByRole('button', { name: /^Tags of/ }).click();
    await page.keyboard.type(' mine');
    await page.keyboard.press('Enter');
    await expect(row.locator('.jp-Hp-tag', { hasText: 'mine' })).toBeVisible();
    await row.getByRole('button', { name: /^Note of/ }).click();
    await page.keyboard.type('to be read again');
    await page.keyboard.press('Enter');
    await expect(row).toContainText('to be read again');
    await row.getByRole('button', { name: /^Tags of/ }).click();
    await page.keyboard.type(' no!tag');
    noise.ignore = true; // the browser says that a request was refused
    await page.keyboard.press('Enter');
    await expect(page.locator('.Toastify')).toContainText('cannot be a tag');
    await page.keyboard.press('Escape');
  });

  test('says what is wrong with a filter or a tag, before anything is sent', async ({
    page
  }) => {
    await command(page, 'hyperpod:open-runs');
    const table = page.locator(TABLE);
    await table.getByRole('searchbox').fill('state:faild');
    await expect(table).toContainText("No state is called 'faild'");
    await picture(page, 'runs-nothing');
    expect(await barriers(page, TABLE)).toEqual([]);
    await table.getByRole('button', { name: 'Clear' }).click();
    await expect(table.getByRole('status')).toContainText('127 runs');
    await table.locator('[data-index="0"]').getByRole('checkbox').check();
    await table.getByRole('button', { name: 'Tag…' }).click();
    const dialog = page.locator('.jp-Dialog');
    await dialog.getByLabel('Tags').fill('a b,ü <b>x</b>');
    await expect(dialog).toContainText('"<b>x</b>" cannot be a tag');
    await expect(dialog.getByRole('button', { name: 'Tag' })).toBeDisabled();
    await picture(page, 'runs-tag');
    await page.keyboard.press('Enter');
    await expect(dialog).toContainText('cannot be a tag');
    expect(await barriers(page, '.jp-Dialog')).toEqual([]);
    await page.keyboard.press('Escape');
    await expect(dialog).toHaveCount(0);
  });

  test('archives and deletes, but asks first', async ({ page }) => {
    await openPanel(page);
    const count = page
      .locator('#jp-hyperpod-sidebar .jp-Hp-section', { hasText: 'Jobs' })
      .locator('.jp-Hp-count')
      .first();
    await expect(count).toHaveText('127');
    await command(page, 'hyperpod:open-runs');
    const table = page.locator(TABLE);
    const filter = table.getByRole('searchbox');
    await filter.fill('name:many-1');
    await expect(table.getByRole('status')).toContainText('31 of 127 runs');
    await table.getByRole('checkbox', { name: 'Tick all' }).check();
    await table.getByRole('button', { name: 'Archive…' }).click();
    const dialog = page.locator('.jp-Dialog');
    await expect(dialog).toContainText('Archive 31 runs?');
    await dialog.getByRole('button', { name: 'Archive' }).click();
    await expect(table.getByRole('status')).toContainText('31 archived');
    await expect(count, 'they leave the panel, too').toHaveText('96');
    await filter.fill('is:archived name:many-11');
    await expect(table.getByRole('status')).toContainText('11 of 127 runs');
    await table.getByRole('checkbox', { name: 'Tick all' }).check();
    await table.getByRole('button', { name: 'Delete…' }).click();
    await expect(dialog).toContainText('Delete 11 runs?');
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    await expect(table.getByRole('status')).toContainText('11 of 127 runs');
    await table.getByRole('button', { name: 'Delete…' }).click();
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await expect(table.getByRole('status')).toContainText('0 of 116 runs');
    expect(ids).toHaveLength(7);
  });

  test('compares ticked runs: until where they are the same, curves, differences', async ({
    page
  }) => {
    await command(page, 'hyperpod:open-runs');
    const table = page.locator(TABLE);
    await table.getByRole('searchbox').fill('tag:baseline');
    await expect(table.getByRole('status')).toContainText('2 of');
    await table.getByRole('checkbox', { name: 'Tick all' }).check();
    await table.getByRole('button', { name: 'Compare', exact: true }).click();
    const view = page.locator('.jp-Hp-comparison');
    await expect(view.locator('.jp-Hp-identity')).toContainText(/213/);
    await expect(view.locator('.jp-Hp-curve')).toHaveCount(8);
    expect(await barriers(page, '.jp-Hp-comparison')).toEqual([]);
    await picture(page, 'compare-two');

    const [curves] = await Promise.all([
      page.waitForEvent('download'),
      view.getByRole('button', { name: 'CSV' }).click()
    ]);
    const text = readFileSync((await curves.path())!, 'utf8');
    expect(text.split('\n')[0]).toBe(
      'run,metric,step,seconds,value,lowest,highest'
    );
    expect(text).toContain(`${ids[6]},accuracy,400,`);
    for (const [kind, begin] of [
      ['SVG', '<svg'],
      ['PNG', '\u0089PNG']
    ]) {
      const [drawing] = await Promise.all([
        page.waitForEvent('download'),
        view.getByRole('button', { name: kind }).first().click()
      ]);
      const found = readFileSync((await drawing.path())!, 'latin1');
      expect(found.startsWith(begin), kind).toBe(true);
      expect(found.includes('var('), kind).toBe(false);
    }
    const [log] = [view.getByRole('checkbox', { name: 'Logarithmic' })];
    await log.check();
    await view.getByRole('slider', { name: 'Smoothing' }).fill('0.9');
    await expect(view.locator('.jp-Hp-raw')).toHaveCount(8);
    await view.getByRole('textbox', { name: 'From' }).fill('100');
    await view.getByRole('textbox', { name: 'to', exact: true }).fill('300');
    await page.keyboard.press('Enter');
    const drawing = view.locator('.jp-Hp-drawing').first();
    await expect(drawing.locator('text', { hasText: /^200$/ })).toBeVisible();
    await expect(drawing.locator('text', { hasText: /^400$/ })).toHaveCount(0);
    const box = (await drawing.boundingBox())!;
    await page.mouse.move(box.x + 200, box.y + 100);
    await page.mouse.down();
    await page.mouse.move(box.x + 300, box.y + 100, { steps: 4 });
    await page.mouse.up();
    await expect(view.getByRole('textbox', { name: 'From' })).not.toHaveValue(
      '100'
    );
    await drawing.dblclick({ position: { x: 200, y: 60 } });
    await expect(view.getByRole('button', { name: 'All' })).toBeDisabled();
    await view.getByRole('button', { name: 'Time' }).click();
    await expect(view.locator('.jp-Hp-curve')).toHaveCount(8);
  });

  test('compares up to six, whose code differs', async ({ page }) => {
    await command(page, 'hyperpod:compare-runs', {
      ids: ids.slice(1).join(' ')
    });
    const view = page.locator('.jp-Hp-comparison');
    await expect(view.locator('.jp-Hp-compared > li')).toHaveCount(6);
    await view.locator('details').first().locator('summary').click();
    await expect(view.locator('.jp-Hp-diff').first()).toContainText('SGD');
    expect(await barriers(page, '.jp-Hp-comparison')).toEqual([]);
    await picture(page, 'compare-six');
    await view
      .locator('.jp-Hp-diff')
      .first()
      .evaluate(element => element.scrollIntoView());
    await picture(page, 'compare-code');
  });

  test('shows what differs before a run is promoted', async ({ page }) => {
    await command(page, 'hyperpod:open-runs');
    const table = page.locator(TABLE);
    await table.getByRole('searchbox').fill('tag:best');
    await expect(table.getByRole('status')).toContainText('1 of');
    await table.getByRole('checkbox', { name: 'Tick all' }).check();
    await table.getByRole('button', { name: 'Promote…' }).click();
    const form = page.locator('.jp-Hp-promote');
    await expect(form.getByLabel('Nodes')).toHaveValue('8');
    const rows = form.locator('.jp-Hp-changes tbody tr');
    await expect(rows.filter({ hasText: 'the environment' })).toBeVisible();
    await form.getByLabel('Nodes').fill('16');
    await expect(rows.filter({ hasText: /^nodes/ })).toContainText('816');
    await expect(form.getByRole('status')).toContainText('the same code');
    await expect(form.getByLabel(/^Submit it although/)).not.toBeChecked();
    await expect(
      page.locator('.jp-Dialog').getByRole('button', { name: 'Promote' })
    ).toBeDisabled();
    expect(await barriers(page, '.jp-Hp-promote')).toEqual([]);
    await picture(page, 'promote');
    await page.locator('.jp-Dialog .jp-mod-reject').click();
    await expect(form).toHaveCount(0);
  });
});
