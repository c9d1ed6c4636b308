/** Timers that end early, and those that keep no process alive. */

interface Unrefable {
  unref?(): void;
}

/** What ends something that waits. */
export type Signals = readonly (AbortSignal | undefined)[];

/** What ends something under way, with its reason. */
export type Cancel = (reason: unknown) => void;

/** A timer that is set for longer fires at once. In milliseconds. */
export const LONGEST_TIMER = 0x7fff_ffff;

/**
 * Runs `work` after so many milliseconds, at most `LONGEST_TIMER`, unless the timer is cleared. Keeps no
 * process alive: a program that has nothing else to do ends.
 */
export function background(milliseconds: number, work: () => void): Timer {
  const timer: unknown = setTimeout(work, Math.min(milliseconds, LONGEST_TIMER));
  if (typeof timer === "object") {
    (timer as Unrefable).unref?.();
  } else {
    const deno = (globalThis as { Deno?: { unrefTimer?(timer: unknown): void } }).Deno;
    deno?.unrefTimer?.(timer);
  }
  return timer as Timer;
}

export type Timer = ReturnType<typeof setTimeout>;

/**
 * Waits so many milliseconds; rejects with the reason of a signal that fires. Keeps the process
 * alive: its caller waits.
 */
export function sleep(milliseconds: number, signals: Signals = []) {
  return new Promise<void>((resolve, reject) => {
    const stop = onAbort(signals, (reason) => {
      clearTimeout(timer);
      reject(reason);
    });
    const timer = setTimeout(() => {
      stop();
      resolve();
    }, milliseconds);
  });
}

/** The same in the background. */
export function quietSleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => background(milliseconds, resolve));
}

/** What is called when a signal fires. One listener for each signal: Node warns of more than ten. */
const CALLED = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `then` once when any of these signals fires, soon if one has already; what is returned ends
 * that. (`AbortSignal.any` is missing from the first Node 20 and from browsers of 2023.)
 */
export function onAbort(signals: Signals, then: Cancel): () => void {
  const listening = signals.filter((it) => it !== undefined);
  const fire = (): void => {
    const fired = listening.find((it) => it.aborted);
    if (fired !== undefined) {
      stop();
      then(fired.reason);
    }
  };
  const stop = (): void => {
    listening.forEach((signal) => CALLED.get(signal)?.delete(fire));
    listening.length = 0;
  };
  for (const signal of listening) {
    calledBy(signal).add(fire);
  }
  if (listening.some((it) => it.aborted)) {
    queueMicrotask(fire);
  }
  return stop;
}

function calledBy(signal: AbortSignal): Set<() => void> {
  const known = CALLED.get(signal);
  if (known !== undefined) {
    return known;
  }
  const called = new Set<() => void>();
  CALLED.set(signal, called);
  signal.addEventListener("abort", () => [...called].forEach((it) => it()), { once: true });
  return called;
}
