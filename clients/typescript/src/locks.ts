/** A connection to a lock service. */

import { Engine } from "./engine.js";
import { Invalid } from "./errors.js";
import { type BreakOptions, breakLock, inspect, list } from "./inspect.js";
import { Latch } from "./latch.js";
import { Election, type LockOptions, Mutex, RwLock, Semaphore, exclusive } from "./primitives.js";
import { RESERVED, Register } from "./register.js";
import { type ConnectOptions, duration } from "./settings.js";
import type { LockState, Space } from "./state.js";

const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

/**
 * The locks of a lock service. No I/O; the first request connects.
 *
 * `url` is `http://HOST:PORT`, several servers of one service as `http://HOST:PORT,HOST:PORT`, or
 * `https://…`. Its option `?timeout=5s` is how long a request may take before another server is
 * asked.
 *
 * Throws `Invalid` for what cannot work.
 */
export function connect(url: string, options: ConnectOptions = {}): Locks {
  return new Locks(new Engine(url, options));
}

/**
 * A connection to a lock service. Close it, or use it with `await using`, to give back what is still
 * held. A program that ends without that costs the ttl.
 */
export class Locks implements AsyncDisposable {
  readonly #engine: Engine;

  /** @internal */
  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** The lock of this name, held by one client at a time. No I/O. */
  mutex(name: string, options: LockOptions = {}): Mutex {
    return new Mutex(this.#engine, exclusive(this.#engine, name, options));
  }

  /** The lock of this name for many readers or one writer. No I/O. */
  rwLock(name: string, options: LockOptions = {}): RwLock {
    return new RwLock(this.#engine, exclusive(this.#engine, name, options));
  }

  /** A semaphore of `limit` permits; the limit is the same for all who use it. No I/O. */
  semaphore(name: string, limit: number, options: LockOptions = {}): Semaphore {
    return new Semaphore(this.#engine, exclusive(this.#engine, name, options), limit);
  }

  /**
   * Elects one leader. `value` is what the others are to know of this candidate, such as its address:
   * at most 1,000 bytes in one line. No I/O.
   */
  election(name: string, value?: string, options: Omit<LockOptions, "note"> = {}): Election {
    return new Election(this.#engine, exclusive(this.#engine, name, { ...options, note: value }));
  }

  /**
   * A latch that opens when `count` participants have counted down. With a `ttl`, in milliseconds, it
   * is forgotten so long after it was last counted down or reset. No I/O.
   */
  latch(name: string, count: number, options: { readonly ttl?: number } = {}): Latch {
    const register = new Register(this.#engine, `${RESERVED}latch/${name}`);
    return new Latch(register, name, count, options.ttl);
  }

  /** The register of this name: a value of at most 64 KiB beside the locks. No I/O. */
  register(name: string): Register {
    if (name.startsWith(RESERVED)) {
      throw new Invalid(`register names that begin with "${RESERVED}" are lockkit's own`);
    }
    return new Register(this.#engine, name);
  }

  /** Who holds a lock (or a `semaphore`) and who waits for it. */
  inspect(name: string, space: Space = "lock"): Promise<LockState> {
    return inspect(this.#engine, name, space);
  }

  /** The locks and semaphores in use whose names begin with `names`. */
  list(names = ""): Promise<LockState[]> {
    return list(this.#engine, names);
  }

  /**
   * Breaks the claim that has this token; whether there was one. Its holder is told at its next
   * renewal, and the lock moves on when the holder lets go or its lease ends. With `force` it moves on
   * at once: from there on only tokens protect.
   */
  breakLock(name: string, token: bigint, options: BreakOptions = {}): Promise<boolean> {
    return breakLock(this.#engine, name, token, options);
  }

  /**
   * Gives back what is held, and ends what is in the background. Locks that are held are lost
   * (`closed`); calls that wait reject with `Closed`. Waits for the service for so many milliseconds
   * at most.
   */
  close(timeout = 5_000): Promise<void> {
    return this.#engine.close(duration("timeout", timeout));
  }

  [asyncDispose](): Promise<void> {
    return this.close();
  }
}
