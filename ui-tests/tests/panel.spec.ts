/** The panel at the width that JupyterLab gives it: nothing is cut off, in light, dark and forced colours. */

import { ChildProcess } from 'child_process';
import { mkdirSync } from 'fs';
import { join } from 'path';

import { Page } from '@playwright/test';

import {
  barriers,
  expect,
  openPanel,
  picture,
  replay,
  SHOTS,
  test
} from './fixtures';

test.use({ suite: 'panel' });

/** The layout of the page as the server has it. */
async function savedLayout(page: Page): Promise<string> {
  const answer = await page.request.get('/lab/api/workspaces/default');
  const found = answer.ok() ? await answer.json() : { data: {} };
  return JSON.stringify(found.data['layout-restorer:data'] ?? '');
}

test.describe('the panel', () => {
  let writer: ChildProcess | undefined;

  test.afterEach(() => {
    writer?.kill();
  });

  test('shows nodes as they are, with nothing cut off, in every colour scheme', async ({
    page,
    server
  }) => {
    ({ writer } = await replay(server, '--steps', '5000', '--health'));
    await openPanel(page);
    const panel = page.locator('#jp-hyperpod-sidebar');
    await expect(panel.locator('.jp-Hp-node')).toHaveCount(5);
    await panel.locator('[data-node="node-1"]').click();
    const detail = panel.locator('.jp-Hp-detail').first();
    await expect(detail.getByRole('button', { name: 'Drain' })).toBeVisible();
    await expect(detail.locator('.jp-Hp-faults')).toHaveCount(0);
    await panel.getByRole('button', { name: /^Break something/ }).click();
    await expect(
      detail.getByRole('button', { name: 'Kill node' })
    ).toBeVisible();

    const width = await panel.evaluate(element => element.clientWidth);
    expect(width).toBeLessThanOrEqual(300);
    const cut = await panel.evaluate(element =>
      [...element.querySelectorAll<HTMLElement>('*:not(.jp-Hp-unseen)')]
        .filter(
          one =>
            one.clientWidth > 0 &&
            one.scrollWidth > one.clientWidth + 1 &&
            getComputedStyle(one).overflowX !== 'visible'
        )
        .map(one => `${one.className}: ${one.textContent}`)
    );
    expect(cut).toEqual([]);
    const beyond = () =>
      panel.evaluate(element => {
        const { left, right } = element.getBoundingClientRect();
        // The bar of a job's progress is moved within its frame, which hides the rest.
        const seen = '*:not(.jp-Hp-unseen, .jp-Hp-progress > *)';
        return [...element.querySelectorAll(seen)]
          .filter(one => {
            const box = one.getBoundingClientRect();
            const out = box.right > right + 0.5 || box.left < left - 0.5;
            return box.width > 0 && out;
          })
          .map(one => one.textContent);
      });
    expect(await beyond()).toEqual([]);
    await picture(page, 'panel');

    await page.emulateMedia({ contrast: 'more', reducedMotion: 'reduce' });
    await page.screenshot({ path: join(SHOTS, 'panel-contrast.png') });
    await page.evaluate(() => (document.dir = 'rtl'));
    expect(await beyond()).toEqual([]);
    expect(await barriers(page, '#jp-hyperpod-sidebar')).toEqual([]);
    await page.screenshot({ path: join(SHOTS, 'panel-rtl.png') });
    await page.evaluate(() => (document.dir = 'ltr'));
    await page.emulateMedia({ contrast: null, reducedMotion: null });

    await page.emulateMedia({ forcedColors: 'active' });
    mkdirSync(SHOTS, { recursive: true });
    const fill = (selector: string) =>
      page
        .locator(selector)
        .first()
        .evaluate(element => {
          const { backgroundColor, backgroundImage } =
            getComputedStyle(element);
          const canvas = document.createElement('div');
          canvas.style.cssText = 'forced-color-adjust:none;background:Canvas';
          document.body.append(canvas);
          const plain = getComputedStyle(canvas).backgroundColor;
          canvas.remove();
          return backgroundColor !== plain || backgroundImage !== 'none';
        });
    await expect
      .poll(() => fill('.jp-Hp-sidebar .jp-Hp-progress > div'))
      .toBe(true);
    expect(await fill('.jp-Hp-node .jp-Hp-dot[data-state="training"]')).toBe(
      true
    );
    expect(await fill('.jp-Hp-sidebar .jp-Hp-stagebar > span')).toBe(true);
    await page.screenshot({ path: join(SHOTS, 'panel-forced.png') });
    await panel.locator('.jp-Hp-job .jp-Hp-name').first().click();
    const lanes = page.locator('.jp-Hp-lanes');
    await expect(lanes).toBeVisible();
    expect(await fill('.jp-Hp-lane [data-role="member"]')).toBe(true);
    await page.screenshot({ path: join(SHOTS, 'dashboard-forced.png') });
    expect(await barriers(page, '#jp-hyperpod-sidebar')).toEqual([]);
    expect(await barriers(page, '.jp-Hp-dashboard')).toEqual([]);
    await page.emulateMedia({ forcedColors: 'none' });
  });

  test('is followed by tabs that keep their names when the page is loaded again', async ({
    page,
    server
  }) => {
    ({ writer } = await replay(server, '--steps', '5000', '--health'));
    await openPanel(page);
    const name = page.locator('.jp-Hp-sidebar .jp-Hp-job .jp-Hp-name');
    await name.filter({ hasText: 'tinylm' }).first().click();
    const tab = page.locator('.lm-TabBar-tab[data-id^="jp-hyperpod-job-"]');
    await expect(tab).toHaveText('tinylm');
    const id = (await tab.getAttribute('data-id'))!.replace(
      'jp-hyperpod-job-',
      ''
    );
    await expect
      .poll(() => savedLayout(page), 'the layout is saved a moment later')
      .toContain(id);
    await page.reload({ waitForIsReady: false } as object);
    await expect(tab).toHaveText('tinylm');
  });

  test('opens the example, and says a refusal with its remedy', async ({
    page
  }) => {
    await page.evaluate(() =>
      (window as any).jupyterapp.commands
        .execute('hyperpod:open-example')
        .then(() => null)
    );
    const cells = page.locator('.jp-Notebook .jp-CodeCell');
    await expect(cells).toHaveCount(2);
    await expect(cells.first()).toContainText('%load_ext jupyter_hyperpod');
    await expect(cells.last()).toContainText('%%hyperpod --nodes 4');
    await picture(page, 'example');
  });
});
