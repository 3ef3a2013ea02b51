/** Files of mounts in a file browser of their own: seen, edited, made, uploaded and downloaded for real. */

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'fs';
import { join } from 'path';

import { expect, picture, test } from './fixtures';

test.use({ suite: 'files' });

test('files of mounts', async ({ page, server }) => {
  const shared = join(server.store, 'shared');
  mkdirSync(join(shared, 'runs', 'checkpoints'), { recursive: true });
  writeFileSync(join(shared, 'notes.md'), '# A run\n');
  writeFileSync(join(shared, 'runs', 'loss.csv'), 'step,loss\n1,2.5\n');
  const browser = page.locator('#hyperpod-files');
  const item = (name: string) =>
    browser.locator('.jp-DirListing-item', {
      has: page.getByText(name, { exact: true })
    });

  await test.step('its tab lists all mounts', async () => {
    await page.locator('.jp-SideBar [data-id="hyperpod-files"]').click();
    await expect(item('shared')).toBeVisible();
    await expect(item('shared')).not.toContainText(/ago|now/);
  });

  await test.step('a mount of the panel leads to its files', async () => {
    await page.evaluate(async () => {
      await (window as any).jupyterapp.commands.execute('hyperpod:show-panel');
    });
    await page.getByTitle('Show the files of shared').click();
    await expect(browser).toBeVisible();
    await expect(item('runs')).toBeVisible();
    await expect(item('notes.md')).toBeVisible();
    await picture(page, 'files');
  });

  await test.step('a mount has no time, though its row had one of a file', async () => {
    await expect(item('notes.md')).toContainText(/ago|now/);
    await browser.locator('.jp-BreadCrumbs-home').click();
    await expect(item('shared')).toBeVisible();
    await expect(item('shared')).not.toContainText(/ago|now/);
    await item('shared').dblclick();
    await expect(item('notes.md')).toContainText(/ago|now/);
  });

  await test.step('a file is edited and saved in place', async () => {
    await item('notes.md').dblclick();
    const editor = page.locator('.jp-FileEditor .cm-content');
    await expect(editor).toContainText('# A run');
    await editor.click();
    await page.keyboard.press('Control+End');
    await page.keyboard.type('it went well');
    await page.keyboard.press('Control+s');
    await expect
      .poll(() => readFileSync(join(shared, 'notes.md'), 'utf8'))
      .toContain('it went well');
  });

  await test.step('a reload brings the file back, and the other files too', async () => {
    writeFileSync(join(server.files, 'mine.txt'), '');
    await page.reload({ waitForIsReady: false });
    await expect(page.locator('.jp-FileEditor .cm-content')).toContainText(
      'it went well'
    );
    await page.sidebar.openTab('filebrowser');
    await expect(page.locator('#filebrowser.jp-mod-restoring')).toHaveCount(0);
    await expect(
      page.locator('#filebrowser .jp-DirListing-content li').first()
    ).toBeVisible();
    await page.locator('.jp-SideBar [data-id="hyperpod-files"]').click();
    await expect(item('notes.md')).toBeVisible();
  });

  await test.step('folders are entered, also one named checkpoints', async () => {
    await item('runs').dblclick();
    await expect(item('loss.csv')).toBeVisible();
    await item('checkpoints').dblclick();
    await expect(browser.locator('.jp-DirListing-item')).toHaveCount(0);
  });

  await test.step('a folder is made and a file uploaded in parts', async () => {
    await browser.getByRole('button', { name: 'New Folder' }).click();
    await expect
      .poll(() => existsSync(join(shared, 'runs/checkpoints/Untitled Folder')))
      .toBe(true);
    await page.keyboard.press('Enter');
    const content = Buffer.alloc(3_500_000, 'abcdefg');
    const choosing = page.waitForEvent('filechooser');
    await browser.getByRole('button', { name: 'Upload Files' }).click();
    await (
      await choosing
    ).setFiles({
      name: 'weights.bin',
      mimeType: 'application/octet-stream',
      buffer: content
    });
    await expect(item('weights.bin')).toBeVisible();
    const path = join(shared, 'runs/checkpoints/weights.bin');
    expect(readFileSync(path).equals(content)).toBe(true);
  });

  await test.step('a file is downloaded', async () => {
    await item('weights.bin').click({ button: 'right' });
    const coming = page.waitForEvent('download');
    await page.getByRole('menuitem', { name: 'Download', exact: true }).click();
    const found = readFileSync((await (await coming).path())!);
    expect(found.length).toBe(3_500_000);
  });
});
