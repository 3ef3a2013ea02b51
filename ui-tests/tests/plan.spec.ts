/** The planner: what the sliders ask for is what the server answers; nothing runs here. */

import { expect, picture, test } from './fixtures';

test.use({ suite: 'plan' });

test('the planner tells what failures cost', async ({ noise, page }) => {
  await page.evaluate(async () => {
    // The widget it gives cannot leave the page.
    await (window as any).jupyterapp.commands.execute('hyperpod:open-planner');
  });
  const planner = page.locator('.jp-Hp-planner');
  const answer = planner.locator('.jp-Hp-plan');

  await test.step('it begins with the published example', async () => {
    await expect(answer).toContainText('32.05 % less training time');
    await expect(answer).toContainText('$25,600,000');
    await expect(answer.locator('svg path')).toHaveCount(6);
  });

  await test.step('a slider changes the figures', async () => {
    const slider = planner.getByLabel('Recovery by hand');
    noise.ignore = true; // a browser complains about every refusal
    await slider.focus();
    await slider.press('Home');
    await expect(planner.locator('.jp-Hp-banner')).toContainText('exchanged');
    await expect(answer).toHaveAttribute('data-outdated', 'true');
    await slider.press('End');
    await expect(planner.locator('.jp-Hp-banner')).toHaveCount(0);
    noise.ignore = false;
    await expect(answer).not.toContainText('32.05 % less training time');
  });

  await test.step('a convention is named, and simulated', async () => {
    await planner.getByLabel('Recovery by hand').fill('310');
    await planner
      .getByLabel('A failure during a repair')
      .selectOption('restart');
    await expect(answer).toContainText('convention: restart');
    await planner.getByRole('button', { name: 'Simulate' }).click();
    await expect(answer).toContainText('from seed 0');
    await expect(answer.locator('svg circle')).not.toHaveCount(0);
    await expect(answer.locator('table')).toHaveCount(4);
    await picture(page, 'planner');
  });

  await test.step('it is there once, and in the launcher', async () => {
    await page.evaluate(async () => {
      await (window as any).jupyterapp.commands.execute(
        'hyperpod:open-planner'
      );
      await (window as any).jupyterapp.commands.execute('launcher:create');
    });
    await expect(page.locator('.jp-Hp-planner')).toHaveCount(1);
    await expect(
      page.locator('.jp-LauncherCard', { hasText: 'Failure Planner' }).last()
    ).toBeVisible();
  });
});
