/** A Jupyter server and a job store of this run's own, and a page that must not complain. */

import { ChildProcess, spawn, spawnSync } from 'child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'fs';
import { tmpdir } from 'os';
import { join } from 'path';

import {
  galata,
  IJupyterLabPageFixture,
  test as base
} from '@jupyterlab/galata';
import { Browser, expect, Page } from '@playwright/test';

const ROOT = join(__dirname, '..', '..');
const VENV = join(ROOT, '.venv', 'bin', 'python');
export const PYTHON =
  process.env.HYPERPOD_PYTHON ?? (existsSync(VENV) ? VENV : 'python3');
export const SHOTS = join(ROOT, 'test-output', 'ui', 'screenshots');

/** One Jupyter server that can be stopped and started again on the same port and store. */
export class JupyterServer {
  readonly home = mkdtempSync(join(tmpdir(), 'hyperpod-ui-'));
  readonly store = join(this.home, 'store');
  readonly files = join(this.home, 'files');
  readonly environment: NodeJS.ProcessEnv = {
    ...process.env,
    HOME: this.home,
    TMPDIR: this.home,
    JUPYTER_HYPERPOD_STORE: this.store,
    JUPYTERLAB_GALATA_ROOT_DIR: this.files,
    IPYTHONDIR: join(this.home, 'ipython'),
    JUPYTER_RUNTIME_DIR: join(this.home, 'runtime'),
    JUPYTERLAB_SETTINGS_DIR: join(this.home, 'settings')
  };

  /** `beside`: what else is installed where this server runs. */
  constructor(private readonly _beside: string[] = []) {}

  async start(): Promise<void> {
    mkdirSync(this.files, { recursive: true });
    this._install();
    this._writeSettings();
    const config = join(ROOT, 'ui-tests', 'jupyter_server_config.py');
    const server = spawn(
      this._beside.length > 0 ? this._interpreter : PYTHON,
      [
        '-m',
        'jupyterlab',
        `--config=${config}`,
        '--no-browser',
        '--allow-root'
      ],
      {
        cwd: this._beside.length > 0 ? this.home : ROOT, // jupyter-collaboration writes a file there
        env: this.environment,
        detached: true,
        stdio: ['ignore', 'ignore', 'pipe']
      }
    );
    this._process = server;
    this._log = '';
    server.stderr!.on('data', chunk => {
      this._log = (this._log + chunk).slice(-20_000);
    });
    await this._answers(server);
  }

  async stop(): Promise<void> {
    const server = this._process;
    this._process = null;
    if (server && server.exitCode === null) {
      const gone = new Promise(resolve => server.once('exit', resolve));
      process.kill(-server.pid!, 'SIGTERM');
      await gone;
    }
  }

  /** Run a Python program against this run's store and return what it printed. */
  python(...args: string[]): string {
    const done = spawnSync(PYTHON, args, {
      cwd: ROOT,
      env: this.environment,
      encoding: 'utf8'
    });
    if (done.status !== 0) {
      throw new Error(`python ${args.join(' ')} failed:\n${done.stderr}`);
    }
    return done.stdout;
  }

  /** Stop everything that was started, and forget it. */
  async remove(): Promise<void> {
    await this.stop();
    if (existsSync(join(this.store, 'cluster'))) {
      spawnSync(PYTHON, ['-m', 'jupyter_hyperpod', 'cluster', 'stop'], {
        cwd: ROOT,
        env: this.environment
      });
    }
    rmSync(this.home, { recursive: true, force: true, maxRetries: 5 });
  }

  private get _interpreter(): string {
    return join(this.home, 'venv', 'bin', 'python');
  }

  private _install(): void {
    if (this._beside.length > 0 && !existsSync(this._interpreter)) {
      const tool = join(ROOT, 'ui-tests', 'tools', 'environment.py');
      this.python(tool, join(this.home, 'venv'), ...this._beside);
    }
  }

  /** What a person would have chosen in the settings editor. */
  private _writeSettings(): void {
    for (const [plugin, value] of Object.entries(galata.DEFAULT_SETTINGS)) {
      const [name, file] = plugin.split(':');
      const directory = join(this.home, 'settings', name);
      mkdirSync(directory, { recursive: true });
      writeFileSync(
        join(directory, `${file}.jupyterlab-settings`),
        JSON.stringify(value)
      );
    }
  }

  private async _answers(server: ChildProcess): Promise<void> {
    const port = process.env.HYPERPOD_UI_PORT;
    for (let tries = 0; tries < 600; tries++) {
      if (server.exitCode !== null) {
        throw new Error(`the Jupyter server ended:\n${this._log}`);
      }
      try {
        const url = `http://127.0.0.1:${port}/jupyter_hyperpod/api/v1/settings`;
        if ((await fetch(url)).ok) {
          return;
        }
      } catch {
        // Not listening yet.
      }
      await new Promise(resolve => setTimeout(resolve, 100));
    }
    throw new Error(`the Jupyter server did not answer:\n${this._log}`);
  }

  private _process: ChildProcess | null = null;
  private _log = '';
}

/** What the page said that it should not have. */
export interface INoise {
  complaints: string[];
  /** Losing the server is no fault of the page while it is stopped on purpose. */
  ignore: boolean;
}

export const test = base.extend<
  { noise: INoise },
  { suite: string; beside: string[]; server: JupyterServer }
>({
  // Each file names its own: it gets a worker, a server and a store that no other file has touched.
  suite: ['', { scope: 'worker', option: true }],
  beside: [[], { scope: 'worker', option: true }],
  server: [
    async ({ suite, beside }, use) => {
      expect(suite, 'test.use({ suite: … }) stands in each file').not.toBe('');
      const server = new JupyterServer(beside);
      try {
        await server.start();
        await use(server);
      } finally {
        await server.remove(); // also one that did not answer: it has the port of the next one
      }
    },
    { scope: 'worker' }
  ],
  // The server has to be there before the page that Galata opens.
  tmpPath: async ({ server, tmpPath }, use) => {
    await use(server ? tmpPath : '');
  },
  // Everything is the server's own: Galata's stand-ins fail a test that stops the server.
  kernels: null,
  sessions: null,
  terminals: null,
  mockConfig: false,
  mockSettings: false,
  mockState: false,
  mockUser: false,
  noise: [
    async ({ page }, use) => {
      const noise: INoise = { complaints: [], ignore: false };
      page.on('pageerror', error => {
        // The stack names the bundle that threw.
        if (/hyperpod/i.test(error.stack ?? '')) {
          noise.complaints.push(String(error.stack));
        }
      });
      page.on('console', message => {
        const ours = /hyperpod/i.test(message.text() + message.location().url);
        const loud = ['error', 'warning'].includes(message.type());
        if (ours && loud && !noise.ignore) {
          noise.complaints.push(message.text());
        }
      });
      await use(noise);
      expect(noise.complaints).toEqual([]);
    },
    { auto: true }
  ]
});

const REPLAY = join(ROOT, 'ui-tests', 'tools', 'replay.py');

/** Begin to write a recorded journal; gives the job's id. */
export async function replay(
  server: JupyterServer,
  ...options: string[]
): Promise<{ id: string; writer: ChildProcess }> {
  const writer = spawn(PYTHON, [REPLAY, server.store, ...options], {
    env: { ...server.environment, PYTHONPATH: ROOT },
    stdio: ['ignore', 'pipe', 'inherit']
  });
  const id = await new Promise<string>((resolve, reject) => {
    writer.stdout!.once('data', data => resolve(String(data).trim()));
    writer.once('exit', () => reject(new Error('the replay ended at once')));
  });
  return { id, writer };
}

/** Write a notebook where the server's files are, and open it. */
export async function openNotebook(
  page: Page,
  server: JupyterServer,
  name: string,
  ...cells: (string | ICell)[]
): Promise<void> {
  writeFileSync(join(server.files, name), notebook(...cells));
  await page.evaluate(async path => {
    // The widget it gives cannot leave the page.
    const open = 'docmanager:open';
    const app = (window as any).jupyterapp;
    const widget = await app.commands.execute(open, { path });
    // Cells that are run before the kernel is there are not run at all; some tests have none.
    const patience = new Promise(resolve => setTimeout(resolve, 20_000));
    await Promise.race([widget.context.sessionContext.ready, patience]);
  }, name);
  await expect(page.locator('.jp-Notebook .jp-Cell').first()).toBeVisible();
}

/** Give the open notebook the focus, as a person has it who works there. */
export async function focusNotebook(page: Page): Promise<void> {
  const inside = () =>
    page.evaluate(() => {
      (window as any).jupyterapp.shell.currentWidget.content.activate();
      return document.activeElement!.closest('.jp-Notebook') !== null;
    });
  // Until its kernel is there, its cells are drawn again, which takes the focus from them.
  await expect(page.getByText('(ipykernel) | Idle')).toBeVisible();
  await expect.poll(inside, 'the notebook has the focus').toBe(true);
}

/** Open a page as somebody else does, who shares nothing with this one's. */
export async function openPage(browser: Browser, path: string): Promise<Page> {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`http://127.0.0.1:${process.env.HYPERPOD_UI_PORT}/${path}`);
  return page;
}

/** Open the left panel. */
export async function openPanel(page: Page): Promise<void> {
  const panel = page.locator('#jp-hyperpod-sidebar');
  if (!(await panel.isVisible())) {
    await page.locator('[data-id="jp-hyperpod-sidebar"]').click();
  }
  await expect(panel).toBeVisible();
}

/** Keep a picture of the page in the light and in the dark theme, and go back to the light one. */
export async function picture(
  page: IJupyterLabPageFixture,
  name: string
): Promise<void> {
  mkdirSync(SHOTS, { recursive: true });
  for (const theme of ['Dark', 'Light']) {
    await page.theme.setTheme(`JupyterLab ${theme}`);
    await page.waitForTimeout(400); // the plot is drawn again in the theme's colours
    await page.screenshot({
      path: join(SHOTS, `${name}-${theme.toLowerCase()}.png`)
    });
  }
}

/** What axe-core finds wrong with a part of the page, in one line each. */
export async function barriers(page: Page, part: string): Promise<string[]> {
  await page.addScriptTag({ path: require.resolve('axe-core/axe.min.js') });
  return page.evaluate(async selector => {
    const found = await (window as any).axe.run(selector);
    return found.violations.map(
      (one: any) =>
        `${one.id}: ${one.nodes.map((node: any) => node.html).join(' ')}`
    );
  }, part);
}

/** A code cell, with the MIME bundle of its output where it has one. */
export interface ICell {
  source: string;
  tags?: string[];
  output?: Record<string, unknown>;
}

/** The text of a notebook with these code cells. */
function notebook(...cells: (string | ICell)[]): string {
  const kernelspec = {
    name: 'python3',
    display_name: 'Python 3',
    language: 'python'
  };
  return JSON.stringify({
    nbformat: 4,
    nbformat_minor: 5,
    metadata: { kernelspec },
    cells: cells.map((cell, index) => {
      const { source, output, tags }: ICell =
        typeof cell === 'string' ? { source: cell } : cell;
      return {
        cell_type: 'code',
        id: `cell-${index}`,
        metadata: tags ? { tags } : {},
        execution_count: null,
        source,
        outputs: output
          ? [{ output_type: 'display_data', metadata: {}, data: output }]
          : []
      };
    })
  });
}

export { expect };
