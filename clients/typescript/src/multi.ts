/** Several locks as one: all or none, taken in one order that every client keeps. */

import type { Engine } from "./engine.js";
import { Invalid, Unavailable } from "./errors.js";
import { Held, checkReleased, partsOf } from "./held.js";
import { type Lock, recordOf } from "./lock.js";
import {
  type AcquireOptions,
  type LockOptions,
  Source,
  exclusive,
  waited,
  within,
} from "./source.js";
import type { Signals } from "./timers.js";
import { compared } from "./wire.js";

/** How several locks are to be had. */
export type MultiOptions = Pick<LockOptions, "ttl" | "waitTtl" | "note" | "maxHold">;

/** Several locks that are held, and renewed in the background. */
export class HeldLocks extends Held {
  readonly #locks: readonly Lock[];

  /** @internal */
  constructor(locks: readonly Lock[]) {
    super(locks.flatMap(partsOf));
    this.#locks = locks;
  }

  /** The locks, one for each name, as the caller named them. Do not release one of them. */
  get locks(): readonly Lock[] {
    return this.#locks;
  }

  /** The fencing tokens in the same order. Throws `LockLost` once one of the locks is not valid. */
  get tokens(): bigint[] {
    return this.#locks.map((it) => it.token);
  }

  /**
   * Gives all back; settles once the service knows. Rejects with `LockLost` when one of them was not
   * held until now. Releasing again does nothing.
   */
  async release(): Promise<void> {
    const locks = [...new Set(this.#locks)];
    checkReleased(await Promise.allSettled(locks.map((it) => it.release())));
  }

  override toString(): string {
    const names = this.#locks.map((it) => JSON.stringify(it.name)).join(", ");
    return `Locks ${names}, ${this.isValid ? "" : "not "}valid`;
  }
}

/**
 * Several mutexes, held together.
 *
 * - **All or none**: while it waits for one it holds those before it, and gives them back when it
 *   gives up or loses one of them.
 * - **No deadlock** between multi-locks, whatever the order of the names: they are taken in the order
 *   of their names, byte by byte, in every language. A name given twice is one lock.
 * - **Lost when one is lost.**
 */
export class MultiLock {
  readonly #engine: Engine;
  /** In the order in which they are taken. */
  readonly #sources: readonly Source[];
  /** For each name that the caller gave, its position in that order. */
  readonly #positions: readonly number[];

  /** @internal */
  constructor(engine: Engine, given: Iterable<string>, options: MultiOptions) {
    const { ttl, waitTtl, note, maxHold } = options;
    const names = [...given];
    if (names.length === 0) {
      throw new Invalid("a multi-lock has one lock at least");
    }
    const bytes = new TextEncoder();
    const ordered = [...new Set(names)].sort((a, b) => compared(bytes.encode(a), bytes.encode(b)));
    this.#engine = engine;
    this.#positions = names.map((it) => ordered.indexOf(it));
    this.#sources = ordered.map(
      (it) => new Source(engine, exclusive(engine, it, { ttl, waitTtl, note, maxHold })),
    );
  }

  /**
   * Waits until all are held. When one is lost meanwhile, all are given back, and it begins again.
   * While the service is out of reach, this goes on trying.
   */
  lock({ signal }: AcquireOptions = {}): Promise<HeldLocks> {
    return waited(this.#take(true, [signal]));
  }

  /** All if all are free and no claim waits for one; otherwise none, and `undefined`, at once. */
  tryLock({ signal }: AcquireOptions = {}): Promise<HeldLocks | undefined> {
    return this.#take(false, [signal]);
  }

  /** Waits until all are held, but not longer than so many milliseconds in all; then `undefined`. */
  tryLockFor(timeout: number, { signal }: AcquireOptions = {}): Promise<HeldLocks | undefined> {
    return within(timeout, signal, (wait, signals) => this.#take(wait, signals));
  }

  /** Waits for all, and runs `work(held)` under them; see `Lock.run`. */
  async run<T>(
    work: (held: HeldLocks) => T | PromiseLike<T>,
    options: AcquireOptions = {},
  ): Promise<T> {
    return (await this.lock(options)).run(work);
  }

  async #take(wait: boolean, signals: Signals): Promise<HeldLocks | undefined> {
    for (;;) {
      const held: Lock[] = [];
      try {
        await this.#fill(held, wait, signals);
      } catch (error) {
        // The loss of one that was held ended the wait for the next: begin again.
        if (held.every((it) => it.isValid) || signals.some((it) => it?.aborted)) {
          held.forEach((it) => this.#engine.abandoned(recordOf(it)));
          throw error;
        }
      }
      if (held.length === this.#sources.length && held.every((it) => it.isValid)) {
        return new HeldLocks(this.#positions.map((it) => held[it]!));
      }
      await releaseAll(held);
      if (!wait) {
        return undefined;
      }
    }
  }

  /** Takes one after the other, until one is busy that is not waited for. */
  async #fill(held: Lock[], wait: boolean, signals: Signals): Promise<void> {
    if (wait && this.#sources.length > 1) {
      held.push(...(await this.#takeFree(signals)));
    }
    for (const source of this.#sources.slice(held.length)) {
      const lost = held.map((it) => it.signal);
      const lock = await source.take(wait, [...signals, ...lost]);
      if (lock === undefined) {
        return;
      }
      held.push(lock);
    }
  }

  /**
   * Takes those that are free, all at once, and gives back what lies behind one that is not: a client
   * that waits may only hold what comes before.
   */
  async #takeFree(signals: Signals): Promise<Lock[]> {
    const tries = this.#sources.map((it) => it.take(false, signals));
    const results = await Promise.allSettled(tries);
    const taken = results.map((it) => (it.status === "fulfilled" ? it.value : undefined));
    const missing = taken.indexOf(undefined);
    const held = taken.filter((it) => it !== undefined);
    const behind = missing < 0 ? [] : held.splice(missing);
    for (const it of results) {
      // What may pass is asked for again, with patience.
      if (it.status === "rejected" && !(it.reason instanceof Unavailable)) {
        [...held, ...behind].forEach((lock) => this.#engine.abandoned(recordOf(lock)));
        throw it.reason;
      }
    }
    await releaseAll(behind);
    return held;
  }
}

/** Whatever the answers: what is not released by now is in the background. */
async function releaseAll(locks: readonly Lock[]): Promise<void> {
  await Promise.allSettled(locks.map((it) => it.release()));
}
