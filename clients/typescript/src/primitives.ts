/** Mutex, read-write lock, semaphore and election: what is asked for, checked before any I/O. */

import { acquire } from "./acquire.js";
import type { Engine } from "./engine.js";
import { Invalid } from "./errors.js";
import { changed, inspect } from "./inspect.js";
import { Lock, type Work } from "./lock.js";
import type { Record } from "./record.js";
import { checkedTtl, duration } from "./settings.js";
import type { ClaimState, LockState } from "./state.js";
import { background } from "./timers.js";
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
}

/** How one lock is waited for. */
export interface AcquireOptions {
  /** What ends the waiting: the call then rejects with the signal's reason, and no lock is left. */
  readonly signal?: AbortSignal | undefined;
}

/** @internal */
export function exclusive(engine: Engine, name: string, options: LockOptions): Request {
  const { settings } = engine;
  const { note, autoRenew = true, maxHold } = options;
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
  const ttl = options.ttl === undefined ? settings.ttl : checkedTtl("ttl", options.ttl);
  const waitTtl =
    options.waitTtl === undefined ? settings.waitTtl : checkedTtl("waitTtl", options.waitTtl);
  return { name, mode: "exclusive", ttl, waitTtl, note, autoRenew, maxHold };
}

type Signals = (AbortSignal | undefined)[];

/** The three ways to wait for a lock. */
class Source {
  readonly engine: Engine;
  readonly request: Request;

  constructor(engine: Engine, request: Request) {
    this.engine = engine;
    this.request = request;
  }

  /** Waits for it. */
  async wait({ signal }: AcquireOptions): Promise<Lock> {
    const lock = await this.#acquire(true, [signal]);
    if (lock === undefined) {
      throw new Error("a lock without a limit is waited for");
    }
    return lock;
  }

  /** The lock, or `undefined` at once. */
  attempt({ signal }: AcquireOptions): Promise<Lock | undefined> {
    return this.#acquire(false, [signal]);
  }

  /** Waits, but not longer than this. */
  async within(timeout: number, { signal }: AcquireOptions): Promise<Lock | undefined> {
    if (duration("timeout", timeout) === 0) {
      return this.attempt({ signal });
    }
    const elapsed = new AbortController();
    const reason = new Error("elapsed");
    const timer = background(timeout, () => elapsed.abort(reason));
    try {
      return await this.#acquire(true, [signal, elapsed.signal]);
    } catch (error) {
      if (error === reason) {
        return undefined;
      }
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  #acquire(wait: boolean, signals: Signals): Promise<Lock | undefined> {
    const { engine, request } = this;
    const own = (record: Record) => new Lock(engine, record);
    return engine.acquiring(acquire(engine, request, own, wait, ...signals));
  }
}

/** A lock that one client holds at a time. */
export class Mutex {
  readonly #source: Source;

  /** @internal */
  constructor(engine: Engine, request: Request) {
    this.#source = new Source(engine, request);
  }

  /** Waits for the lock: `await using lock = await mutex.lock()`. */
  lock(options: AcquireOptions = {}): Promise<Lock> {
    return this.#source.wait(options);
  }

  /** The lock if it is free and no other claim waits; otherwise `undefined`, at once. */
  tryLock(options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#source.attempt(options);
  }

  /** Waits for the lock, but not longer than so many milliseconds; then `undefined`. */
  tryLockFor(timeout: number, options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#source.within(timeout, options);
  }

  /** Waits for the lock, and runs `work(lock)` under it; see `Lock.run`. */
  async run<T>(work: Work<T>, options: AcquireOptions = {}): Promise<T> {
    return (await this.lock(options)).run(work);
  }
}

/** A lock for many readers or one writer. It is the lock that `mutex` has under the same name. */
export class RwLock {
  readonly #reading: Source;
  readonly #writing: Source;

  /** @internal */
  constructor(engine: Engine, request: Request) {
    this.#reading = new Source(engine, { ...request, mode: "shared" });
    this.#writing = new Source(engine, request);
  }

  /** Waits for reading, beside other readers. */
  read(options: AcquireOptions = {}): Promise<Lock> {
    return this.#reading.wait(options);
  }

  tryRead(options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#reading.attempt(options);
  }

  tryReadFor(timeout: number, options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#reading.within(timeout, options);
  }

  /** Waits for writing. `lock.downgrade()` then lets readers in. */
  write(options: AcquireOptions = {}): Promise<Lock> {
    return this.#writing.wait(options);
  }

  tryWrite(options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#writing.attempt(options);
  }

  tryWriteFor(timeout: number, options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#writing.within(timeout, options);
  }
}

/**
 * So many permits, which clients hold side by side. Tokens of permits do not fence: an older holder
 * is legitimate.
 */
export class Semaphore {
  readonly #engine: Engine;
  readonly #request: Request;
  readonly #limit: number;

  /** @internal */
  constructor(engine: Engine, request: Request, limit: number) {
    this.#engine = engine;
    this.#request = request;
    this.#limit = limit;
  }

  /** Waits for a permit. */
  acquire(options: AcquireOptions = {}): Promise<Lock> {
    return this.acquireMany(1, options);
  }

  /** Waits for so many permits, which are had together. */
  async acquireMany(permits: number, options: AcquireOptions = {}): Promise<Lock> {
    return this.#permits(permits).wait(options);
  }

  /**
   * So many permits if there are so many and no other claim waits; otherwise `undefined`, at once.
   */
  async tryAcquire(permits = 1, options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#permits(permits).attempt(options);
  }

  /** Waits for so many permits, but not longer than this. */
  async tryAcquireFor(
    timeout: number,
    permits = 1,
    options: AcquireOptions = {},
  ): Promise<Lock | undefined> {
    return this.#permits(permits).within(timeout, options);
  }

  /** Waits for a permit, and runs `work(lock)` under it; see `Lock.run`. */
  async run<T>(work: Work<T>, options: AcquireOptions = {}): Promise<T> {
    return (await this.acquire(options)).run(work);
  }

  /** How many permits are not out. */
  async availablePermits(): Promise<number> {
    const state = await inspect(this.#engine, this.#request.name, "semaphore");
    const out = state.holders.reduce((sum, it) => sum + (it.permits ?? 0), 0);
    const limit = state.queue.find((it) => it.limit !== undefined)?.limit ?? this.#limit;
    return Math.max(0, limit - out);
  }

  #permits(permits: number): Source {
    const limit = this.#limit;
    const whole = Number.isInteger(permits) && Number.isInteger(limit);
    if (!whole || permits < 1 || permits > limit || limit > 0xffff_ffff) {
      throw new Invalid(`${permits} permits of a semaphore of ${limit} can never be had`);
    }
    return new Source(this.#engine, { ...this.#request, mode: "permits", permits, limit });
  }
}

/**
 * One leader at a time, elected in the order of coming, and known to all by its value.
 *
 * It is the lock of the same name: leading is holding it, and its token grows from leader to leader.
 */
export class Election {
  readonly #source: Source;

  /** @internal */
  constructor(engine: Engine, request: Request) {
    this.#source = new Source(engine, request);
  }

  /** Waits until this candidate leads. Releasing the lock resigns. */
  campaign(options: AcquireOptions = {}): Promise<Lock> {
    return this.#source.wait(options);
  }

  /** Leads if there is no other candidate; otherwise `undefined`, at once. */
  tryCampaign(options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#source.attempt(options);
  }

  /** Campaigns, but not longer than this. */
  campaignFor(timeout: number, options: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.#source.within(timeout, options);
  }

  /** Waits until this candidate leads, and runs `work(lock)` as the leader; see `Lock.run`. */
  async run<T>(work: Work<T>, options: AcquireOptions = {}): Promise<T> {
    return (await this.campaign(options)).run(work);
  }

  /** The leader of now: `note` is its value. */
  async leader(): Promise<ClaimState | undefined> {
    return leaderOf(await inspect(this.#source.engine, this.#source.request.name, "lock"));
  }

  /**
   * The leader of now, if there is one, and then each that follows. One that led for a short time
   * only may be left out. Waits for good for the next one, unless the signal fires.
   */
  async *observe({ signal }: AcquireOptions = {}): AsyncGenerator<ClaimState, never> {
    const { engine, request } = this.#source;
    let state = await inspect(engine, request.name, "lock", signal);
    for (let last = 0n; ; ) {
      const leader = leaderOf(state);
      if (leader !== undefined && leader.token > last) {
        last = leader.token;
        yield leader;
      }
      state = await changed(engine, state, signal);
    }
  }
}

function leaderOf(state: LockState): ClaimState | undefined {
  return state.holders.find((it) => it.mode === "exclusive");
}
