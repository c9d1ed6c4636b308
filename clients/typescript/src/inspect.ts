/**
 * What can be seen of locks, and breaking one. Reading changes nothing, so it is repeated after a
 * failure that may pass.
 */

import { limitOf, lockState, page, seen, wasFound } from "./answers.js";
import type { Engine } from "./engine.js";
import { Invalid, Unavailable } from "./errors.js";
import { backoff } from "./record.js";
import type { LockState, Space } from "./state.js";
import { type Signals, sleep } from "./timers.js";
import { type Json, LONGEST_WAIT, UNPOLLED, holderJson } from "./wire.js";

/** How long a look is repeated that fails, in milliseconds: a restart of a server is over by then. */
const PATIENCE = 5_000;

/** Asks until there is an answer or an error that stays, for so long. */
export async function repeat<T>(
  engine: Engine,
  path: string,
  body: Json,
  read: (answer: Json) => T,
  callers: Signals = [],
  patience = PATIENCE,
): Promise<T> {
  const until = performance.now() + patience;
  const signals = [...callers, engine.closing];
  for (let failures = 1; ; failures++) {
    engine.checkOpen();
    try {
      return await engine.ask({ path, body, read, signals });
    } catch (error) {
      const pause = backoff(failures);
      if (!(error instanceof Unavailable) || performance.now() + pause >= until) {
        throw error;
      }
      engine.retrying(error);
      await sleep(pause, signals);
    }
  }
}

/** A request whose answer may wait; goes on trying while the service is out of reach. */
export async function poll<T>(
  engine: Engine,
  path: string,
  body: Json,
  read: (answer: Json) => T,
  signal: AbortSignal | undefined,
): Promise<T> {
  const signals = [signal, engine.closing];
  for (let failures = 0; ; ) {
    engine.checkOpen();
    const waits = engine.beginPoll();
    const wait = waits ? LONGEST_WAIT : 0;
    try {
      const limit = wait + engine.settings.timeout;
      const asked = { ...body, wait_ms: wait };
      const answer = await engine.ask({ path, body: asked, read, limit, signals });
      if (!waits) {
        await sleep(UNPOLLED, signals);
      }
      return answer;
    } catch (error) {
      if (!(error instanceof Unavailable)) {
        throw error;
      }
      failures += 1;
      await engine.pause(error, failures, signals);
    } finally {
      if (waits) {
        engine.endPoll();
      }
    }
  }
}

function key(engine: Engine, name: string, space: Space): Json {
  return { namespace: engine.settings.namespace, name, space };
}

export function inspect(
  engine: Engine,
  name: string,
  space: Space,
  signal?: AbortSignal,
): Promise<LockState> {
  return repeat(engine, "/v1/inspect", key(engine, name, space), lockState, [signal]);
}

/** The lock once its queue is not the one of `before`. */
export async function changed(
  engine: Engine,
  before: LockState,
  signal: AbortSignal | undefined,
): Promise<LockState> {
  const known = before.queue.map(seen);
  const body = { key: key(engine, before.name, before.space), known };
  for (;;) {
    const now = await poll(engine, "/v1/changed", body, lockState, signal);
    if (JSON.stringify(now.queue.map(seen)) !== JSON.stringify(known)) {
      return now;
    }
  }
}

/** All locks and semaphores in use whose names begin with `names`. */
export async function list(
  engine: Engine,
  names: string,
  signals: Signals = [],
): Promise<LockState[]> {
  const locks: LockState[] = [];
  let after: string | undefined;
  do {
    const body = { namespace: engine.settings.namespace, names, after };
    const [more, next] = await repeat(engine, "/v1/list", body, page, signals);
    locks.push(...more);
    after = next;
  } while (after !== undefined);
  return locks;
}

export function breakLock(
  engine: Engine,
  name: string,
  token: bigint,
  space: Space,
  force: boolean,
  reason: string | undefined,
): Promise<boolean> {
  const by = holderJson(engine.settings.holder);
  const body = { key: key(engine, name, space), token: String(token), force, by, reason };
  return engine.ask({ path: "/v1/break", body, read: wasFound });
}

/**
 * Gives a semaphore a limit, or with `ifUnset` only if it has none; the limit that is in force then.
 * Asked for again after a lost answer, for so long.
 */
export async function resize(
  engine: Engine,
  name: string,
  limit: number,
  ifUnset: boolean,
  patience: number,
  signals: Signals = [],
): Promise<number> {
  if (!Number.isInteger(limit) || limit < 0 || limit > 0xffff_ffff) {
    throw new Invalid(`${limit} is no limit of a semaphore: use a whole number, 0 or more`);
  }
  const body = { key: key(engine, name, "semaphore"), limit, if_unset: ifUnset };
  return repeat(engine, "/v1/resize", body, limitOf, signals, patience);
}
