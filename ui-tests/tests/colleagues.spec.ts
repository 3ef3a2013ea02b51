/** Where others of Jupyter's parts are installed beside this one: Notebook 7, and two people on one notebook. */

import { expect, openNotebook, openPage, replay, test } from './fixtures';

test.use({
  suite: 'colleagues',
  beside: [
    'notebook==7.6.5',
    'jupyter-collaboration==5.0.4',
    'jupyter-collaboration-ui==3.0.4',
    'jupyter-docprovider==3.0.4',
    'jupyter-server-ydoc==3.0.4',
    'jupyter-ydoc==4.2.1',
    'jupyter_server_fileid==0.10.0',
    'pycrdt==0.14.13',
    'pycrdt-store==0.1.5',
    'pycrdt-websocket==0.16.5',
    'sqlite-anyio==0.2.10'
  ]
});

const CARD = '.jp-Hp-card';

/** A cell whose output is the card of a job, which it changes while it prints. */
function cell(job: string): string {
  return `
bundle = {"application/vnd.hyperpod.job.v1+json": {"job_id": "${job}", "store": "", "streams": True}, "text/plain": "a job"}
display(bundle, raw=True, display_id="card")
print("printed by a rank")
for turn in range(4):
    bundle["text/plain"] = f"step {turn}"
    display(bundle, raw=True, display_id="card", update=True)
print("the end")
`;
}

test('two people see one card, and Notebook 7 shows it, too', async ({
  page,
  server,
  browser
}) => {
  const { id, writer } = await replay(server, '--steps', '1000');
  try {
    await openNotebook(page, server, 'shared.ipynb', cell(id));
    const colleague = await openPage(browser, 'lab/tree/shared.ipynb');
    await expect(colleague.locator('.jp-Notebook .jp-Cell')).toBeVisible();
    await page.menu.clickMenuItem('Run>Run All Cells');
    for (const one of [page, colleague]) {
      await expect(one.getByText('the end').last()).toBeVisible();
      await expect(one.locator(CARD).filter({ visible: true })).toHaveCount(1);
      await expect(one.locator(CARD).last()).toContainText('Running');
    }
    await page.notebook.save();
    await colleague.close();

    const plain = await openPage(browser, 'notebooks/shared.ipynb');
    await expect(plain.locator(CARD)).toHaveCount(1);
    await expect(plain.locator(CARD)).toContainText('Running');
    const opened = plain.context().waitForEvent('page');
    await plain.getByRole('button', { name: /^Open the dashboard/ }).click();
    // Notebook 7 has no room for a dashboard: JupyterLab opens it.
    await expect((await opened).locator('.jp-Hp-dashboard')).toContainText(id);
    await plain.context().close();
  } finally {
    writer.kill();
  }
});
