/** What is asked for, checked before any I/O, and the ways to wait for it. */

import { acquire } from "./acquire.js";
import type { Engine } from "./engine.js";
import { Invalid } from "./errors.js";
import { Lock } from "./lock.js";
import type { Record } from "./record.js";
import { checkedTtl, duration } from "./settings.js";
import { type Signals, background } from "./timers.js";
import type { Request } from "./wire.js";

/** How a lock is to be had. Durations are in milliseconds. */
export interface LockOptions {
  /** How long the lock stays held when this process dies. */
  readonly ttl?: number | undefined;
  /** How long a waiter that died blocks those behind it. */
  readonly waitTtl?: number | undefined;
  /** A text for people that look at the lock: at most 1,000 bytes in one line. */
  readonly note?: string | undefined;
  /** `false`: the lock ends with its first lease. */
  readonly autoRenew?: boolean | undefined;
  /** The lock is lost after this time, so that a holder that hangs does not keep it. */
  readonly maxHold?: number | undefined;
  /**
   * The lock stays held for so long from when it is had, although it is released sooner. A process
   * that dies leaves it taken for that time, too.
   */
  readonly atLeast?: number | undefined;
  /** The lock stays closed for so long after it was lost, and not after a release. */
  readonly lockDelay?: number | undefined;
}

/** How one lock is waited for. */
export interface AcquireOptions {
  /** What ends the waiting: the call then rejects with the signal's reason, and no lock is left. */
  readonly signal?: AbortSignal | undefined;
}

/** @internal */
export function exclusive(engine: Engine, name: string, options: LockOptions): Request {
  const { settings } = engine;
  const { note, autoRenew = true, maxHold, atLeast, lockDelay = settings.lockDelay } = options;
  const bytes = new TextEncoder().encode(name).length;
  if (bytes < 1 || bytes > 512) {
    throw new Invalid("a name has 1 to 512 bytes");
  }
  // A lone half of a surrogate pair would become the same character as any other.
  if (!/^\P{Surrogate}*$/u.test(name)) {
    throw new Invalid("a name is text that can be written as UTF-8");
  }
  if (maxHold !== undefined && duration("maxHold", maxHold) === 0) {
    throw new Invalid("a maxHold of zero holds nothing: use a longer one, or none");
  }
  if (duration("atLeast", atLeast ?? 0) > (maxHold ?? Infinity)) {
    throw new Invalid(
      `an atLeast of ${atLeast} is longer than the maxHold of ${maxHold}: make it shorter`,
    );
  }
  const stays = Math.max(atLeast ?? 0, 1_000) + duration("lockDelay", lockDelay);
  checkedTtl("least hold and lock delay", stays);
  const ttl = options.ttl === undefined ? settings.ttl : checkedTtl("ttl", options.ttl);
  const waitTtl =
    options.waitTtl === undefined ? settings.waitTtl : checkedTtl("waitTtl", options.waitTtl);
  const mode = "exclusive";
  return { name, mode, ttl, waitTtl, note, autoRenew, maxHold, atLeast, lockDelay };
}

/** @internal The three ways to wait for a lock. */
export class Source {
  readonly engine: Engine;
  readonly request: Request;

  constructor(engine: Engine, request: Request) {
    this.engine = engine;
    this.request = request;
  }

  /** Waits for it. */
  wait({ signal }: AcquireOptions): Promise<Lock> {
    return waited(this.take(true, [signal]));
  }

  /** The lock, or `undefined` at once. */
  attempt({ signal }: AcquireOptions): Promise<Lock | undefined> {
    return this.take(false, [signal]);
  }

  /** Waits, but not longer than this. */
  within(timeout: number, { signal }: AcquireOptions): Promise<Lock | undefined> {
    return within(timeout, signal, (wait, signals) => this.take(wait, signals));
  }

  /** The lock; `undefined` when it is busy and not waited for. Any of these signals ends that. */
  take(wait: boolean, signals: Signals): Promise<Lock | undefined> {
    const { engine, request } = this;
    const own = (record: Record) => new Lock(engine, record);
    return engine.acquiring(acquire(engine, request, own, wait, signals));
  }
}

/** @internal What was waited for without a limit. */
export async function waited<T>(taking: Promise<T | undefined>): Promise<T> {
  const taken = await taking;
  if (taken === undefined) {
    throw new Error("what is had without a limit is waited for");
  }
  return taken;
}

/** @internal What `take` gives within so many milliseconds; `undefined` when they are over. */
export async function within<T>(
  timeout: number,
  signal: AbortSignal | undefined,
  take: (wait: boolean, signals: Signals) => Promise<T | undefined>,
): Promise<T | undefined> {
  if (duration("timeout", timeout) === 0) {
    return take(false, [signal]);
  }
  const elapsed = new AbortController();
  const reason = new Error("elapsed");
  const timer = background(timeout, () => elapsed.abort(reason));
  try {
    return await take(true, [signal, elapsed.signal]);
  } catch (error) {
    if (error === reason) {
      return undefined;
    }
    throw error;
  } finally {
    clearTimeout(timer);
  }
}
