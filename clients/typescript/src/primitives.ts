/** Mutex, read-write lock, semaphore and election. */

import type { Engine } from "./engine.js";
import { Invalid, LimitMismatch, Unavailable } from "./errors.js";
import { changed, inspect, resize } from "./inspect.js";
import type { Lock, Work } from "./lock.js";
import { type AcquireOptions, type LockOptions, Source, waited, within } from "./source.js";
import type { ClaimState, LockState } from "./state.js";
import type { Signals } from "./timers.js";
import type { Request } from "./wire.js";

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

/** How a semaphore is to be had. */
export interface SemaphoreOptions extends LockOptions {
  /**
   * The limit belongs to the name, for good: the first use sets it, and from there on only
   * `locks.resize` changes it, for all who use it so. More permits than the limit may be asked for, and
   * wait. Not on every backend.
   */
  readonly resizable?: boolean | undefined;
}

/** How often in a row a limit may turn out to be old before that is taken for a fault. */
const MOST_CHANGES = 100;
const LARGEST_LIMIT = 0xffff_ffff;

/**
 * So many permits, which clients hold side by side. Tokens of permits do not fence: an older holder
 * is legitimate.
 */
export class Semaphore {
  readonly #engine: Engine;
  readonly #request: Request;
  readonly #limit: number;
  /** The limit that is in force, as far as it is known. */
  #known: number | undefined;

  /** @internal */
  constructor(engine: Engine, request: Request, limit: number, resizable = false) {
    this.#engine = engine;
    this.#request = { ...request, resizable: resizable || undefined };
    this.#limit = limit;
    this.#known = resizable ? undefined : limit;
  }

  /** Waits for a permit. */
  acquire(options: AcquireOptions = {}): Promise<Lock> {
    return this.acquireMany(1, options);
  }

  /** Waits for so many permits, which are had together. */
  acquireMany(permits: number, { signal }: AcquireOptions = {}): Promise<Lock> {
    return waited(this.take(permits, true, [signal]));
  }

  /**
   * So many permits if there are so many and no other claim waits; otherwise `undefined`, at once.
   */
  tryAcquire(permits = 1, { signal }: AcquireOptions = {}): Promise<Lock | undefined> {
    return this.take(permits, false, [signal]);
  }

  /** Waits for so many permits, but not longer than this. */
  tryAcquireFor(
    timeout: number,
    permits = 1,
    { signal }: AcquireOptions = {},
  ): Promise<Lock | undefined> {
    return within(timeout, signal, (wait, signals) => this.take(permits, wait, signals));
  }

  /** Waits for a permit, and runs `work(lock)` under it; see `Lock.run`. */
  async run<T>(work: Work<T>, options: AcquireOptions = {}): Promise<T> {
    return (await this.acquire(options)).run(work);
  }

  /** How many permits are not out; 0 while more are out than the limit. */
  async availablePermits(): Promise<number> {
    const given = await this.limit();
    const state = await inspect(this.#engine, this.#request.name, "semaphore");
    const out = state.holders.reduce((sum, it) => sum + (it.permits ?? 0), 0);
    const limit = state.queue.find((it) => it.limit !== undefined)?.limit ?? given;
    return Math.max(0, limit - out);
  }

  /** The limit. Of a resizable semaphore the one that is in force, which the service is asked for. */
  async limit(): Promise<number> {
    return this.#resizable ? this.#ask(true, []) : this.#limit;
  }

  get #resizable(): boolean {
    return this.#request.resizable === true;
  }

  /** @internal Permits under the limit that is known; again under another one when that is old. */
  async take(permits: number, wait: boolean, signals: Signals): Promise<Lock | undefined> {
    this.#check(permits);
    for (let changes = 0; changes < MOST_CHANGES; changes++) {
      const limit = this.#known ?? (await this.#ask(wait, signals));
      const request: Request = { ...this.#request, mode: "permits", permits, limit };
      try {
        return await new Source(this.#engine, request).take(wait, signals);
      } catch (error) {
        if (!this.#resizable || !(error instanceof LimitMismatch)) {
          throw error;
        }
        this.#known = error.inUse;
      }
    }
    throw new Unavailable("the limit changed each time that it was asked for");
  }

  /** Asks the service for the limit, which is that of this object where there is none. */
  async #ask(wait: boolean, signals: Signals): Promise<number> {
    const patience = wait ? Infinity : 0;
    const { name } = this.#request;
    this.#known = await resize(this.#engine, name, this.#limit, true, patience, signals);
    return this.#known;
  }

  #check(permits: number): void {
    const [limit, resizable] = [this.#limit, this.#resizable];
    const whole = Number.isInteger(permits) && Number.isInteger(limit);
    const fits = resizable ? limit >= 0 && permits <= LARGEST_LIMIT : permits <= limit;
    if (!whole || permits < 1 || !fits || limit > LARGEST_LIMIT) {
      throw new Invalid(`${permits} permits of a semaphore of ${limit} can never be had`);
    }
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
