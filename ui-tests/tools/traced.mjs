/**
 * What a page's main thread did in a trace of Chromium, in milliseconds of processor time: other programs on the machine
 * change it little.
 */

const CATEGORIES = [
  'devtools.timeline',
  'disabled-by-default-devtools.timeline'
];
const CHUNK_BYTES = 1 << 24;
/** What a task consists of, by the names of the trace; the rest is scripts and painting. */
const PARTS = {
  layout: ['Layout'],
  styles: ['UpdateLayoutTree'],
  garbage: ['MajorGC', 'MinorGC']
};

/** Begin a trace of all pages; `end()` of what it returns gives the tasks of the page that did most. */
export async function traced(browser) {
  const session = await browser.newBrowserCDPSession();
  await session.send('Tracing.start', {
    transferMode: 'ReturnAsStream',
    traceConfig: {
      recordMode: 'recordAsMuchAsPossible',
      includedCategories: CATEGORIES,
      excludedCategories: ['*']
    }
  });
  return {
    async end() {
      const complete = new Promise(resolve =>
        session.once('Tracing.tracingComplete', resolve)
      );
      await session.send('Tracing.end');
      const { stream, dataLossOccurred } = await complete;
      const parts = [];
      for (let eof = false; !eof;) {
        const read = await session.send('IO.read', {
          handle: stream,
          size: CHUNK_BYTES
        });
        eof = read.eof;
        parts.push(
          Buffer.from(read.data, read.base64Encoded ? 'base64' : 'utf8')
        );
      }
      await session.detach();
      if (dataLossOccurred) {
        throw new Error('the trace is not complete');
      }
      return summary(JSON.parse(Buffer.concat(parts).toString()).traceEvents);
    }
  };
}

const processor = event => (event.tdur ?? 0) / 1000;

function summary(events) {
  const threads = new Map();
  for (const event of events) {
    if (event.ph === 'M' && event.args.name === 'CrRendererMain') {
      threads.set(`${event.pid} ${event.tid}`, []);
    }
  }
  for (const event of events) {
    if (event.ph === 'X') {
      threads.get(`${event.pid} ${event.tid}`)?.push(event);
    }
  }
  const tasksOf = thread => thread.filter(({ name }) => name === 'RunTask');
  const total = thread =>
    tasksOf(thread).reduce((sum, one) => sum + processor(one), 0);
  const page = [...threads.values()].sort((a, b) => total(b) - total(a))[0];
  const longest = tasksOf(page).sort((a, b) => processor(b) - processor(a))[0];
  const inside = page.filter(
    ({ ts }) => ts >= longest.ts && ts < longest.ts + longest.dur
  );
  const parts = Object.entries(PARTS).map(([part, names]) => [
    part,
    inside
      .filter(({ name }) => names.includes(name))
      .reduce((sum, one) => sum + processor(one), 0)
  ]);
  return {
    processor: total(page),
    longest: processor(longest),
    parts: Object.fromEntries(parts),
    layouts: page.filter(({ name }) => name === 'Layout').length
  };
}
