/** A connection to a lock service. */

import { Engine } from "./engine.js";
import { Invalid } from "./errors.js";
import { asyncDispose } from "./held.js";
import { breakLock, inspect, list, resize } from "./inspect.js";
import { Latch } from "./latch.js";
import { MultiLock, type MultiOptions } from "./multi.js";
import { Once } from "./once.js";
import { Election, Mutex, RwLock, Semaphore, type SemaphoreOptions } from "./primitives.js";
import { RESERVED, Register } from "./register.js";
import { type ConnectOptions, checkedTtl, duration } from "./settings.js";
import { Slots } from "./slots.js";
import { type LockOptions, exclusive } from "./source.js";
import type { LockState, Space } from "./state.js";

/** How long a resize is repeated while there is no answer, in milliseconds. */
const PATIENCE = 30_000;
/** How long a decision is kept unless said otherwise: 7 days. */
const KEEP = 7 * 86_400_000;

/** How a claim is broken. */
export interface BreakOptions {
  readonly space?: Space;
  /** The lock moves on at once: from there on only tokens protect. */
  readonly force?: boolean;
  /** Why, for people. */
  readonly reason?: string;
}

/** How a job that is done once is to be done, and for how many milliseconds its decision is kept. */
export interface OnceOptions extends LockOptions {
  /** 7 days unless set. */
  readonly keep?: number | undefined;
}

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
  semaphore(name: string, limit: number, options: SemaphoreOptions = {}): Semaphore {
    const request = exclusive(this.#engine, name, options);
    return new Semaphore(this.#engine, request, limit, options.resizable);
  }

  /**
   * So many numbers, 0 and up, each held by one client at a time: worker ids, devices, ports. How many
   * there are is the same for all who use the name, which has 480 bytes at most. No I/O.
   */
  slots(name: string, slots: number, options: SemaphoreOptions = {}): Slots {
    const request = exclusive(this.#engine, name, options);
    return new Slots(this.#engine, request, slots, options.resizable);
  }

  /** The mutexes of these names, held together: all or none. No I/O. */
  multi(names: Iterable<string>, options: MultiOptions = {}): MultiLock {
    return new MultiLock(this.#engine, names, options);
  }

  /**
   * A job that many start and one does. The key says which run it is, so it has the date in it:
   * `2026-11-21/report`. No I/O.
   */
  once(key: string, options: OnceOptions = {}): Once {
    const { keep = KEEP } = options;
    const register = new Register(this.#engine, `${RESERVED}once/${key}`);
    const request = exclusive(this.#engine, key, options);
    return new Once(this.#engine, request, register, checkedTtl("keep", keep));
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
    const { space = "lock", force = false, reason } = options;
    return breakLock(this.#engine, name, token, space, force, reason);
  }

  /**
   * Changes the limit of a resizable semaphore, or the number of resizable slots, for all its users and
   * for good; 0 drains it. It is in force once this settles. Lowered, it evicts no holder, and grants
   * nothing until there is room.
   *
   * A lost answer is asked for again, for half a minute at most: where another program resized
   * meanwhile, this may be applied again after theirs. Rejects with `Unsupported` where the backend
   * cannot.
   */
  async resize(name: string, limit: number): Promise<void> {
    await resize(this.#engine, name, limit, false, PATIENCE);
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
