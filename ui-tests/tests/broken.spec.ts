/** Parts of cards, of dashboards and of the panel are broken once each, and every time all others stay. */

import { join } from 'path';

import {
  expect,
  ICell,
  openNotebook,
  openPanel,
  picture,
  test
} from './fixtures';

test.use({ suite: 'broken' });

const BROKEN = join(__dirname, '..', 'tools', 'broken.py');
const MIME_TYPE = 'application/vnd.hyperpod.job.v1+json';
/** What stands on a dashboard where nothing is broken. */
const PARTS = {
  head: '.jp-Hp-jobhead',
  figures: '.jp-Hp-stats',
  error: '.jp-Hp-error pre',
  incidents: '.jp-Hp-incident',
  rules: '.jp-Hp-rule',
  decisions: '.jp-Hp-decisions li',
  output: '.jp-Hp-log'
};
type Part = keyof typeof PARTS;
/** Notes that a job of `broken` has: its last loss is in the figures and in the loss curve. */
const notesOf = (broken: string) =>
  ({ none: 0, figures: 2 })[broken as 'none'] ?? 1;
const ON_A_CARD: Part[] = ['head', 'figures', 'error', 'incidents', 'output'];

test('a part that cannot be drawn takes no other part away', async ({
  page,
  server,
  noise
}) => {
  const ids: Record<Part | 'none', string> = JSON.parse(
    server.python(BROKEN, server.store)
  );
  noise.ignore = true; // React tells the console of each error that it has caught
  const cells = ON_A_CARD.map((part): ICell => ({
    source: `# ${part}`,
    output: { [MIME_TYPE]: { job_id: ids[part], store: '', cell_digest: '' } }
  }));
  await openNotebook(page, server, 'broken.ipynb', ...cells);

  await test.step('on cards', async () => {
    for (const [index, broken] of ON_A_CARD.entries()) {
      const card = page.locator('.jp-Hp-card').nth(index);
      await card.scrollIntoViewIfNeeded();
      await expect(card.locator('.jp-Hp-broken')).toHaveCount(notesOf(broken));
      await expect(card.locator('.jp-Hp-broken').first()).toContainText(
        /^The .*cannot be shown/
      );
      for (const part of ON_A_CARD.filter(one => one !== broken)) {
        await expect(card.locator(PARTS[part]).first()).toBeAttached();
      }
    }
    await picture(page, 'broken-cards');
  });

  await test.step('on dashboards', async () => {
    for (const broken of ['none', ...Object.keys(PARTS)] as const) {
      const id = ids[broken as Part];
      await page.evaluate(async job => {
        await (window as any).jupyterapp.commands.execute('hyperpod:open-job', {
          id: job
        });
      }, id);
      const dashboard = page.locator(`#jp-hyperpod-job-${id}`);
      const notes = dashboard.locator('.jp-Hp-broken');
      await expect(dashboard.locator('.jp-Hp-lanes')).toBeAttached();
      await expect(notes).toHaveCount(notesOf(broken));
      for (const part of Object.keys(PARTS) as Part[]) {
        if (part !== broken) {
          await expect(dashboard.locator(PARTS[part]).first()).toBeAttached();
        }
      }
    }
    await picture(page, 'broken-dashboard');
  });

  await test.step('in the panel', async () => {
    await page.route(/api\/v1\/mounts/, route =>
      route.fulfill({ json: { mounts: [{ name: { no: 'text' } }] } })
    );
    await openPanel(page);
    const panel = page.locator('.jp-Hp-sidebar');
    await panel.getByTitle('Refresh the mounts').click();
    await expect(panel.locator('.jp-Hp-broken').first()).toBeVisible();
    await expect(panel).toContainText('The storage cannot be shown');
    await expect(panel.getByText('broken-none').first()).toBeVisible();
    await expect(panel.getByText('Cluster').first()).toBeVisible();
    await picture(page, 'broken-panel');
    await page.unroute(/api\/v1\/mounts/);
  });
});
