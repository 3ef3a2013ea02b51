import type { JupyterFrontEnd } from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { pageOf, reveal, targetOf } from '../reveal';

/** A page: `room` for as many widgets as a shell has. */
function page(room: boolean) {
  const shown: string[] = [];
  const app = {
    serviceManager: { serverSettings: { baseUrl: 'http://localhost/' } },
    shell: {
      add: (widget: Widget) => {
        if (room) {
          Widget.attach(widget, document.body);
        }
      },
      activateById: (id: string) => shown.push(id)
    }
  } as unknown as JupyterFrontEnd;
  const widget = new Widget();
  widget.id = 'jp-hyperpod-job-x';
  const tracker = new WidgetTracker<Widget>({ namespace: `room-${room}` });
  return { app, shown, tracker, widget };
}

it('shows a view where JupyterLab has its tabs', async () => {
  const { app, shown, tracker, widget } = page(true);
  const open = jest.spyOn(window, 'open').mockReturnValue(null);
  expect(await reveal(app, tracker, widget, 'Job', { job: 'x' })).toBe(widget);
  expect(shown).toEqual(['jp-hyperpod-job-x']);
  expect(open).not.toHaveBeenCalled();
  widget.dispose();
});

it('opens a page of JupyterLab where a page holds one notebook and nothing else', async () => {
  const { app, shown, tracker, widget } = page(false);
  const open = jest.spyOn(window, 'open').mockReturnValue(null);
  const job = 'tinylm-abcdefgh';
  expect(await reveal(app, tracker, widget, 'Job', { job })).toBeNull();
  expect(open.mock.calls.map(call => String(call[0]))).toEqual([
    'http://localhost/lab?hyperpod-open=job%3Atinylm-abcdefgh'
  ]);
  expect(shown).toEqual([]);
  expect(widget.isDisposed).toBe(true);
});

it.each([
  { job: 'tinylm-abcdefgh' },
  { planner: true } as const,
  { runs: true } as const,
  { schedules: true } as const,
  { compare: ['a-aaaaaaaa', 'b-bbbbbbbb'] },
  { trials: { sweep: 'first-abcdefgh' } },
  { trials: { jobs: ['a-aaaaaaaa', 'b-bbbbbbbb'] } }
])('reads %p from the address that it wrote', target => {
  const url = new URL(pageOf(target, 'http://localhost:8888/user/a b/'));
  expect(url.pathname).toBe('/user/a%20b/lab');
  expect(targetOf(url.search)).toEqual(target);
});

it.each([
  '',
  '?reset',
  '?hyperpod-open=',
  '?hyperpod-open=job:',
  '?hyperpod-open=compare:a',
  '?hyperpod-open=sweep:',
  '?hyperpod-open=trials:',
  '?x=planner'
])('finds nothing of ours in %p', search => {
  expect(targetOf(search)).toBeNull();
});
