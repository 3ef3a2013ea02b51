/** A view used with the keyboard alone, and what was pressed for it. */

import { mkdirSync, writeFileSync } from 'fs';
import { join } from 'path';

import { expect, Locator, Page } from '@playwright/test';

import { SHOTS } from './fixtures';

const kept = new Map<string, string[]>();

/** A view whose parts are further away than this is not usable by keyboard. */
const MOST_TABS = 70;

/** Presses keys, and writes down which, and where the focus was afterwards. */
export class Keys {
  readonly log: string[] = [];

  constructor(private readonly _page: Page) {}

  view(name: string): void {
    this.log.push('', `# ${name}`);
  }

  async press(...keys: string[]): Promise<void> {
    for (const key of keys) {
      await this._page.keyboard.press(key);
    }
    this.log.push(`${keys.join(' ')} → ${await this._where()}`);
  }

  async type(text: string): Promise<void> {
    await this._page.keyboard.type(text);
    this.log.push(`"${text}" → ${await this._where()}`);
  }

  /** Press Tab until the focus is there. */
  async reach(target: Locator, key = 'Tab'): Promise<void> {
    await expect(target).toBeVisible();
    const passed: string[] = [];
    for (let tabs = 0; tabs <= MOST_TABS; tabs++) {
      const there = await target.evaluate(
        element => element === document.activeElement
      );
      if (there) {
        this.log.push(`${key} × ${tabs} → ${await this._where()}`);
        return;
      }
      await this._page.keyboard.press(key);
      passed.push(await this._where());
    }
    throw new Error(`not reached by ${key}, but: ${passed.join(', ')}`);
  }

  /** Run a command by its name in the palette. */
  async command(name: string): Promise<void> {
    await this._page.keyboard.press('Control+Shift+c');
    await this._page.keyboard.type(name);
    const first = this._page.locator('.lm-CommandPalette-item.lm-mod-active');
    await expect(first).toContainText(name);
    await this.press('Enter');
  }

  /** Add what was pressed to test-output/ui/NAME.txt. */
  keep(name: string): void {
    const all = [...(kept.get(name) ?? []), ...this.log];
    kept.set(name, all);
    mkdirSync(SHOTS, { recursive: true });
    writeFileSync(join(SHOTS, '..', `${name}.txt`), `${all.join('\n')}\n`);
  }

  private _where(): Promise<string> {
    return this._page.evaluate(() => {
      const at = document.activeElement as HTMLElement;
      const name = at.getAttribute('aria-label') ?? at.title ?? '';
      const text = name || (at.textContent ?? '').trim().slice(0, 40);
      return `${at.getAttribute('role') ?? at.tagName.toLowerCase()} "${text}"`;
    });
  }
}

export function button(within: Locator, name: string | RegExp): Locator {
  return within.getByRole('button', { name });
}
