/** The clusters that jobs can be sent to, and with whom the jobs are shared: in the panel, with their dialogs. */

import { mkdirSync, writeFileSync } from 'fs';
import { join } from 'path';
import { userInfo } from 'os';

import { barriers, expect, openPanel, replay, test } from './fixtures';
import { kubeconfig } from './kubeconfig';

test.use({ suite: 'clusters' });

const PANEL = '#jp-hyperpod-sidebar';

test('clusters stand side by side, and one is chosen', async ({
  page,
  server
}) => {
  mkdirSync(join(server.home, '.kube'), { recursive: true });
  writeFileSync(join(server.home, '.kube', 'config'), kubeconfig('one', 'two'));
  await page.reload(); // the panel asks for clusters once per minute, and did before their file was written
  await openPanel(page);
  const picker = page.locator(`${PANEL} .jp-Hp-picker`);
  const cluster = (name: string) => picker.locator(`[data-cluster="${name}"]`);
  const here = cluster('local/').getByRole('radio');
  const usual = cluster('kubernetes/one').getByRole('radio');
  await expect(picker.getByRole('radio')).toHaveCount(3);
  await expect(here).toBeChecked();
  await expect(cluster('local/')).toContainText('no cluster runs');
  await expect(cluster('kubernetes/two').getByRole('radio')).toBeDisabled();

  await usual.check();
  await expect(here).not.toBeChecked();
  await page.reload();
  await openPanel(page);
  await expect(usual, 'the choice is kept').toBeChecked();
  await here.check();

  const look = cluster('kubernetes/one').getByRole('button', { name: 'Look' });
  await look.click();
  await expect(cluster('kubernetes/one')).toContainText('expected https://');
  expect(await barriers(page, PANEL)).toEqual([]);
});

test('the owner shares the jobs and makes them private again', async ({
  noise,
  page,
  server
}) => {
  const { writer } = await replay(server, '--steps', '1000');
  const group = server
    .python('-c', 'import grp, os; print(grp.getgrgid(os.getgid()).gr_name)')
    .trim();
  try {
    await openPanel(page);
    const row = page.locator(`${PANEL} .jp-Hp-sharing`);
    await expect(row).toContainText(`Jobs of ${userInfo().username}`);
    await expect(row).toContainText('only you can see');
    const dialog = page.locator('.jp-Dialog');
    const share = async (read: string) => {
      await row.getByRole('button', { name: 'Share…' }).click();
      const field = dialog.getByLabel('Group that reads');
      await expect(field).toBeFocused();
      await field.fill(read);
      await expect(dialog.getByRole('status')).toContainText(
        read ? 'This counts for all jobs' : 'The store is private'
      );
      expect(await barriers(page, '.jp-Dialog')).toEqual([]);
      await dialog.getByRole('button', { name: 'Share', exact: true }).click();
    };
    await share(group);
    await expect(row).toContainText(`the group ${group} reads`);
    noise.ignore = true; // a browser complains about every refusal
    await share('no-such-group');
    await expect(
      page.getByText(/there is no group 'no-such-group'/).first()
    ).toBeVisible();
    await expect(row).toContainText(`the group ${group} reads`);
    noise.ignore = false;
    await share('');
    await expect(row).toContainText('only you can see');
  } finally {
    writer.kill();
  }
});
