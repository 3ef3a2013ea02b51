import * as React from 'react';

/** What a promise has given: undefined while it waits, null where it was rejected. */
export function useAnswer<T>(asked: Promise<T>): {
  found: T | undefined | null;
  problem: string;
} {
  const [state, setState] = React.useState<{
    found: T | undefined | null;
    problem: string;
  }>({ found: undefined, problem: '' });
  React.useEffect(() => {
    let wanted = true;
    asked.then(
      found => wanted && setState({ found, problem: '' }),
      error =>
        wanted &&
        setState({ found: null, problem: String(error?.message ?? error) })
    );
    return () => {
      wanted = false;
    };
  }, [asked]);
  return state;
}
