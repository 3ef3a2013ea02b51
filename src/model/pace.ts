/** The least time between two notifications of a topic, so that a burst of events is one redraw. */
const QUIET_MS = 50;
/** Scripts of a redraw take at most one part in so many of the time; painting takes about as much again. */
const PARTS = 6;
/** A redraw that took very long, because the machine was busy, does not make the next one wait for longer. */
const LONGEST_MS = 500;

/**
 * When a topic may be told of again: after a pause, which is the longer the more time its last redraw took. A page that
 * redraws without a pause answers neither pointer nor keyboard.
 */
export class Pace {
  /** In milliseconds of `performance.now()`; the past for a topic that is quiet. */
  due(topic: string): number {
    return this._due_ms.get(topic) ?? -Infinity;
  }

  /** Call this before topics are told of, with the present time. */
  begin(topics: ReadonlySet<string>, now_ms: number): void {
    for (const [topic, due_ms] of this._due_ms) {
      if (due_ms <= now_ms) {
        this._due_ms.delete(topic);
      }
    }
    this._wait(topics, now_ms + QUIET_MS);
    // React draws in a task of its own, which is before this one in the queue.
    setTimeout(() => {
      const took_ms = performance.now() - now_ms;
      this._wait(topics, now_ms + Math.min(PARTS * took_ms, LONGEST_MS));
    });
  }

  private _wait(topics: ReadonlySet<string>, due_ms: number): void {
    for (const topic of topics) {
      this._due_ms.set(topic, Math.max(due_ms, this.due(topic)));
    }
  }

  private readonly _due_ms = new Map<string, number>();
}
