import * as React from 'react';

import { Api, IAccount, IResources, messageOf } from '../api';
import { useShared } from '../components/context';
import { TERMINAL_STATES } from '../model/events';
import type { IJobView } from '../model/views';

/** The least pause between two readings of the journal of a job that runs, and how much longer than a reading it is. */
const PAUSE_MS = 10_000;
const PAUSES = 20;

/** What the server has read, and why it could not. */
export interface IAsked<T> {
  answer: T | null;
  problem: string;
}

/** Where a job's time went, and its curves. */
export function useAccount(
  job: IJobView,
  place: React.RefObject<HTMLElement>
): IAsked<IAccount> {
  return useAsked(job, place, askAccount);
}

/** What a job's nodes have used. */
export function useResources(
  job: IJobView,
  place: React.RefObject<HTMLElement>
): IAsked<IResources> {
  return useAsked(job, place, askResources);
}

const askAccount = (api: Api, id: string) => api.account(id);
const askResources = (api: Api, id: string) => api.resources(id);

/** It is read when somebody looks, while the job runs now and then, and once more at its end. */
function useAsked<T>(
  job: IJobView,
  place: React.RefObject<HTMLElement>,
  ask: (api: Api, id: string) => Promise<T>
): IAsked<T> {
  const { model } = useShared();
  const [asked, setAsked] = React.useState<IAsked<T>>({
    answer: null,
    problem: ''
  });
  const ended = TERMINAL_STATES.has(job.state);
  const { id, deleted } = job;
  React.useEffect(() => {
    if (deleted) {
      return;
    }
    let timer: ReturnType<typeof setTimeout>;
    let gone = false;
    let done = false;
    const look = async () => {
      const began = performance.now();
      try {
        const answer = await ask(model.api, id);
        if (!gone) {
          setAsked({ answer, problem: '' });
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
  }, [model, id, deleted, ended, place, ask]);
  return asked;
}

/** Whether the page is seen: `element` is not laid out itself as long as it is empty. */
function isSeen(element: HTMLElement | null): boolean {
  const page = element?.parentElement;
  return document.visibilityState !== 'hidden' && !!page?.offsetParent;
}
