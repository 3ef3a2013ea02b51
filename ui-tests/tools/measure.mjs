/**
 * What a person at a browser waits for, in a real Chromium: `node tools/measure.mjs`.
 *
 * Standard input gives one order per line, standard output one answer per line, both JSON. An order is the name of a
 * function below and its argument. Times are in milliseconds; they end when the frame that shows the change is done.
 */

import { createInterface } from 'node:readline';

import { chromium } from '@playwright/test';

import { traced } from './traced.mjs';

const PATIENCE_MS = 300_000;

/** Runs in the page before any script: times of messages, of tasks that took long, and of frames. */
function watch() {
  const seen = (window.seen = { message: 0, tasks: [], frames: [] });
  const Native = window.WebSocket;
  window.WebSocket = class extends Native {
    constructor(url, ...more) {
      super(url, ...more);
      if (String(url).includes('jupyter_hyperpod')) {
        this.addEventListener('message', () => {
          seen.message ||= performance.now();
        });
      }
    }
  };
  new PerformanceObserver(list => {
    for (const task of list.getEntries()) {
      seen.tasks.push(task.duration);
    }
  }).observe({ type: 'longtask', buffered: true });
  new PerformanceObserver(list => {
    for (const frame of list.getEntries()) {
      seen.frames.push(frame.duration);
    }
  }).observe({ type: 'long-animation-frame' });
  /** Resolves when what is in the document now has been drawn. */
  window.drawn = () =>
    new Promise(resolve =>
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
    );
  /** Look once per frame until it holds; returns the time at which that was drawn. */
  window.until = async (holds, patience) => {
    const last = performance.now() + patience;
    while (!holds()) {
      if (performance.now() > last) {
        throw new Error(`not within ${patience} ms: ${holds}`);
      }
      await new Promise(resolve => requestAnimationFrame(resolve));
    }
    return window.drawn();
  };
}

let browser, page, trace;

const orders = {
  async start({ chromium: path }) {
    browser = await chromium.launch({
      executablePath: path || undefined,
      args: ['--no-sandbox', '--enable-precise-memory-info']
    });
    return {};
  },

  /** Open JupyterLab; how long until its launcher can be used, and what it loaded of the extension. */
  async open({ url }) {
    await page?.context().close();
    const context = await browser.newContext({
      viewport: { width: 1280, height: 800 }
    });
    page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.addInitScript(watch);
    const began = Date.now();
    await page.goto(url);
    await page.locator('.jp-LauncherCard').first().waitFor();
    await page.locator('#jupyterlab-splash').waitFor({ state: 'detached' });
    const took = Date.now() - began;
    const loaded = await page.evaluate(() =>
      performance
        .getEntriesByType('resource')
        .map(one => one.name)
        .filter(name => /extensions\/jupyter_hyperpod\/static/.test(name))
        .map(name => new URL(name).pathname.split('/').pop())
    );
    return { took, loaded };
  },

  /** Open the left panel when the nodes have come; how long until the first is seen, and the last after scrolling to it. */
  async sidebar({ nodes }) {
    const tile = page.locator('.jp-Hp-sidebar .jp-Hp-node').first();
    await tile.waitFor({ state: 'attached' }); // the panel is drawn before it is opened
    return page.evaluate(
      async ([count, patience]) => {
        const began = performance.now();
        jupyterapp.shell.activateById('jp-hyperpod-sidebar');
        const first = await until(
          () =>
            document
              .querySelector('.jp-Hp-sidebar .jp-Hp-node')
              ?.checkVisibility(),
          patience
        );
        const grid = document.querySelector('.jp-Hp-sidebar .jp-Hp-nodes');
        const scrolled = performance.now();
        grid.scrollTop = grid.scrollHeight;
        const last = await until(
          () => grid.querySelector(`.jp-Hp-node[aria-posinset="${count}"]`),
          patience
        );
        return { first: first - began, last: last - scrolled };
      },
      [nodes, PATIENCE_MS]
    );
  },

  /** From a message of the server until the left panel's next change is drawn, and frames of more than 50 ms. */
  async updates({ seconds }) {
    return page.evaluate(async wanted => {
      const found = [];
      const side = document.querySelector('#jp-hyperpod-sidebar');
      const observer = new MutationObserver(async () => {
        const since = seen.message;
        seen.message = 0;
        if (since) {
          found.push((await drawn()) - since);
        }
      });
      seen.message = 0;
      seen.frames = [];
      observer.observe(side, {
        subtree: true,
        childList: true,
        attributes: true,
        characterData: true
      });
      await new Promise(resolve => setTimeout(resolve, wanted * 1000));
      observer.disconnect();
      return { found, frames: seen.frames };
    }, seconds);
  },

  /** Open a job's dashboard; from a line that a worker prints until it is drawn. */
  async lines({ job, seconds }) {
    await execute('hyperpod:open-job', { id: job });
    await page.locator('.jp-Hp-dashboard .jp-Hp-log').waitFor();
    return page.evaluate(async wanted => {
      const found = new Map();
      const read = () => {
        const texts = document.querySelectorAll(
          '.jp-Hp-dashboard .jp-Hp-log .jp-Hp-text'
        );
        return [...texts]
          .slice(-40)
          .map(one => /tick (\d+) at (\d+)/.exec(one.textContent))
          .filter(Boolean);
      };
      const known = new Set(read().map(one => one[1]));
      const observer = new MutationObserver(async () => {
        const fresh = read().filter(one => !known.has(one[1]));
        fresh.forEach(one => known.add(one[1]));
        await drawn();
        for (const [, number, at] of fresh) {
          found.set(number, Date.now() - Number(at));
        }
      });
      observer.observe(document.querySelector('.jp-Hp-dashboard'), {
        subtree: true,
        childList: true,
        characterData: true
      });
      await new Promise(resolve => setTimeout(resolve, wanted * 1000));
      observer.disconnect();
      return { delays: [...found.values()] };
    }, seconds);
  },

  /** Forget the tasks so far; returns the memory in use. */
  async calm() {
    const session = await page.context().newCDPSession(page);
    await session.send('HeapProfiler.collectGarbage');
    await session.detach();
    return page.evaluate(() => {
      seen.tasks = [];
      return {
        memory: performance.memory.usedJSHeapSize,
        elements: document.querySelectorAll('.jp-Hp-log *').length
      };
    });
  },

  /** Begin a trace, or end it: what the page did meanwhile, in processor time. */
  async trace({ on }) {
    if (on) {
      trace = await traced(browser);
      return {};
    }
    return trace.end();
  },

  /** Tasks that have taken more than 50 ms since then, and the step that the dashboard shows. */
  async tasks() {
    return page.evaluate(() => ({
      tasks: seen.tasks,
      shown: document.querySelector('.jp-Hp-dashboard .jp-Hp-jobprogress')
        ?.textContent
    }));
  },

  /** Scroll the log up and down for some seconds; how long each frame took. */
  async scroll({ seconds }) {
    return page.evaluate(async wanted => {
      const log = document.querySelector('.jp-Hp-dashboard .jp-Hp-log');
      log.scrollIntoView();
      const frames = [];
      let before = performance.now();
      const last = before + wanted * 1000;
      let down = false;
      while (before < last) {
        log.scrollTop += down ? 60 : -60;
        if (log.scrollTop <= 0) {
          down = true;
        } else if (log.scrollTop + log.clientHeight >= log.scrollHeight - 1) {
          down = false;
        }
        const now = await new Promise(resolve =>
          requestAnimationFrame(resolve)
        );
        frames.push(now - before);
        before = now;
      }
      return {
        frames: frames.slice(1),
        elements: log.querySelectorAll('*').length
      };
    }, seconds);
  },

  /** Scroll a job's log back from its end, page after page, for some seconds; how long each frame took. */
  async back({ job, seconds }) {
    await execute('hyperpod:open-job', { id: job });
    const log = page.locator('.jp-Hp-dashboard:visible .jp-Hp-log').last();
    await log.locator('.jp-Hp-more').click();
    await log
      .getByText(/line \d/)
      .first()
      .waitFor();
    return log.evaluate(async (box, wanted) => {
      box.scrollIntoView();
      const shown = () =>
        [...box.querySelectorAll('.jp-Hp-text')].flatMap(one => {
          const found = /line ([\d,]+):/.exec(one.textContent);
          return found ? [Number(found[1].replace(/,/g, ''))] : [];
        });
      const newest = Math.max(...shown());
      const frames = [];
      let elements = 0;
      let before = performance.now();
      const last = before + wanted * 1000;
      while (before < last) {
        box.scrollTop -= 60;
        const now = await new Promise(resolve =>
          requestAnimationFrame(resolve)
        );
        frames.push(now - before);
        before = now;
        if (frames.length % 30 === 0) {
          elements = Math.max(elements, box.querySelectorAll('*').length);
        }
      }
      return {
        frames: frames.slice(1),
        elements,
        passed: newest - Math.min(...shown())
      };
    }, seconds);
  },

  /** Open the table of runs; how long until every job has a row. */
  async table({ jobs }) {
    const began = Date.now();
    await execute('hyperpod:open-runs', {});
    const status = page.locator('.jp-Hp-runs [role="status"]').first();
    const words = new RegExp(`^${jobs}.runs?|^\\S+ runs?`);
    await status.filter({ hasText: words }).waitFor();
    const first = Date.now() - began;
    await page.waitForFunction(
      count => {
        const said = document.querySelector(
          '.jp-Hp-runs [role="status"]'
        )?.textContent;
        return (
          said?.replace(/\D*runs.*/, '').replace(/\D/g, '') === String(count) &&
          !said.includes('being read')
        );
      },
      jobs,
      { timeout: PATIENCE_MS }
    );
    return { first, all: Date.now() - began };
  },

  /** Sort and filter the table, several times. */
  async sort({ times }) {
    return page.evaluate(
      async ([count, patience]) => {
        const table = document.querySelector('.jp-Hp-runs');
        const head = () =>
          [...table.querySelectorAll('[role="columnheader"]')].find(one =>
            one.textContent.includes('Loss')
          );
        const status = () => table.querySelector('[role="status"]').textContent;
        const sorts = [];
        const filters = [];
        for (let turn = 0; turn < count; turn++) {
          const order = head().getAttribute('aria-sort');
          let began = performance.now();
          head().querySelector('button').click();
          const sorted = await until(
            () => head().getAttribute('aria-sort') !== order,
            patience
          );
          sorts.push(sorted - began);
          const box = table.querySelector('input[type="search"]');
          const said = status();
          const set = Object.getOwnPropertyDescriptor(
            HTMLInputElement.prototype,
            'value'
          ).set;
          set.call(box, turn % 2 ? '' : `ended-${turn}`);
          began = performance.now();
          box.dispatchEvent(new Event('input', { bubbles: true }));
          filters.push(
            (await until(() => status() !== said, patience)) - began
          );
        }
        return { sorts, filters };
      },
      [times, PATIENCE_MS]
    );
  },

  async end() {
    await browser?.close();
    return {};
  }
};

/** Run a command of JupyterLab. */
async function execute(name, args) {
  await page.evaluate(
    ([command, given]) =>
      window.jupyterapp.commands.execute(command, given).then(() => null),
    [name, args]
  );
}

for await (const line of createInterface({ input: process.stdin })) {
  const { order, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = await orders[order](given);
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
  if (order === 'end') {
    break;
  }
}
await browser?.close();
