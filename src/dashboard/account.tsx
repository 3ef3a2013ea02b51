import * as React from 'react';

import { IAccount, messageOf } from '../api';
import { useShared } from '../components/context';
import { TERMINAL_STATES } from '../model/events';
import type { IJobView } from '../model/views';

/** The least pause between two readings of the journal of a job that runs, and how much longer than a reading it is. */
const PAUSE_MS = 10_000;
const PAUSES = 20;

/** What the journal of a job tells as a whole, and why it could not be read. */
export interface IAsked {
  account: IAccount | null;
  problem: string;
}

/** It is read when somebody looks, while the job runs now and then, and once more at its end. */
export function useAccount(
  job: IJobView,
  place: React.RefObject<HTMLElement>
): IAsked {
  const { model } = useShared();
  const [asked, setAsked] = React.useState<IAsked>({
    account: null,
    problem: ''
  });
  const ended = TERMINAL_STATES.has(job.state);
  const { id } = job;
  React.useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let gone = false;
    let done = false;
    const look = async () => {
      const began = performance.now();
      try {
        const account = await model.api.account(id);
        if (!gone) {
          setAsked({ account, problem: '' });
          done = ended;
        }
      } catch (error) {
        if (!gone) {
          const problem = messageOf(error);
          setAsked(before => ({ ...before, problem }));
        }
      }
      again(performance.now() - began);
    };
    const again = (took: number) => {
      if (!gone && !done) {
        timer = setTimeout(
          () => (isSeen(place.current) ? void look() : again(0)),
          Math.max(PAUSE_MS, PAUSES * took)
        );
      }
    };
    void look();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [model, id, ended, place]);
  return asked;
}

/** Whether the page is seen: `element` is not laid out itself as long as it is empty. */
function isSeen(element: HTMLElement | null): boolean {
  const page = element?.parentElement;
  return document.visibilityState !== 'hidden' && !!page?.offsetParent;
}
