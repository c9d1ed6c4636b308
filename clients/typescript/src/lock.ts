/** A lock that is held. */

import type { Engine } from "./engine.js";
import { LockError, LockLost } from "./errors.js";
import { type Listener, type Loss, type Record, lossError } from "./record.js";
import type { Mode } from "./wire.js";

// Missing from Node before 20.4 and from browsers of 2024, where `await using` is compiled away.
const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);
const inspect = Symbol.for("nodejs.util.inspect.custom");

/** A job under a lock. */
export type Work<T> = (lock: Lock) => T | PromiseLike<T>;

/** Record and engine of a lock: for the other modules of this package. */
interface Inside {
  readonly engine: Engine;
  readonly record: Record;
}

let inside: (lock: Lock) => Inside;

/**
 * A lock that is held, and renewed in the background.
 *
 * A lock object that nothing refers to any more is not renewed, and is released in the background: at
 * the latest when its lease would be renewed next. Reading is without I/O.
 */
export class Lock implements AsyncDisposable {
  readonly #inside: Inside;
  #signal: LossSignal | undefined;

  static {
    inside = (lock) => lock.#inside;
  }

  /** @internal */
  constructor(engine: Engine, record: Record) {
    this.#inside = { engine, record };
    engine.keep(record, this);
  }

  /** The name of the lock. */
  get name(): string {
    return this.#inside.record.claim.request.name;
  }

  get mode(): Mode {
    return this.#inside.record.claim.request.mode;
  }

  /**
   * The fencing token: give it along with every write that the lock protects.
   *
   * A later conflicting holder has a greater token. Throws `LockLost` once the lock is not valid, and
   * `LockReleased` after its release.
   */
  get token(): bigint {
    return this.#inside.record.token();
  }

  /**
   * Whether the lock is held now, by this client's own clock. `false` before any other client can get
   * the lock.
   */
  get isValid(): boolean {
    return this.remaining > 0;
  }

  /** How long the lock is valid without another renewal, in milliseconds; 0 when it is not. */
  get remaining(): number {
    return this.#inside.record.remaining();
  }

  /**
   * Fires when the lock is lost, with a `LockLost` as its reason; never after a release. Give it to
   * what works under the lock.
   *
   * It is fired by a timer. Where timers stand still, in a machine that sleeps or under code that
   * does not yield, it fires late: check `token` where it counts.
   */
  get signal(): AbortSignal {
    const { engine, record } = this.#inside;
    // The timer may not have looked yet.
    engine.expired(record);
    if (this.#signal === undefined) {
      this.#signal = new LossSignal();
      record.tell(this.#signal);
    }
    return this.#signal.signal;
  }

  /**
   * Gives the lock back; settles once the service knows. Releasing again does nothing.
   *
   * Rejects with `LockLost` when the lock was not held until now: what was done under it may have met
   * another client's work. After `Unavailable` the background goes on releasing until the lease is
   * over.
   */
  release(): Promise<void> {
    const { engine, record } = this.#inside;
    return engine.release(record);
  }

  /**
   * Asks the backend whether the lock is held, and renews it. Rejects with `LockLost` or
   * `Unavailable`.
   */
  verify(): Promise<void> {
    const { engine, record } = this.#inside;
    return engine.verify(record);
  }

  /**
   * Of a lock held for writing: keeps it for reading, and lets other readers in. The token stays.
   * Rejects with `Invalid` for other locks, with `LockLost` when it is not held.
   */
  downgrade(): Promise<void> {
    const { engine, record } = this.#inside;
    return engine.downgrade(record);
  }

  /**
   * Runs `work(lock)` under this lock, and releases it when the work has ended. When the lock is
   * lost, `lock.signal` fires, and this rejects with `LockLost` once the work has ended.
   */
  async run<T>(work: Work<T>): Promise<T> {
    let result: T;
    try {
      result = await work(this);
    } catch (error) {
      const loss = this.#inside.record.loss();
      // The work has failed by itself: what becomes of the release is of less interest.
      await this.release().catch(onlyLockErrors);
      throw loss !== undefined && isAbort(error) ? lossError(loss, { cause: error }) : error;
    }
    await this[asyncDispose]();
    return result;
  }

  /**
   * The end of `await using`: releases the lock, and rejects with `LockLost` if it was not held until
   * then. When the service does not answer, the block ends normally and the release goes on in the
   * background.
   */
  async [asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      if (error instanceof LockLost) {
        throw error;
      }
      onlyLockErrors(error);
    }
  }

  toString(): string {
    return `Lock ${JSON.stringify(this.name)} ${this.mode}, ${this.isValid ? "" : "not "}valid`;
  }

  /** @internal */
  [inspect](): string {
    return `<${this}>`;
  }
}

/** @internal */
export function recordOf(lock: Lock): Record {
  return inside(lock).record;
}

/** @internal */
export function engineOf(lock: Lock): Engine {
  return inside(lock).engine;
}

/**
 * The signal of a loss, which lives as long as its lock object or the signal itself: work that has
 * only the signal is stopped, too. It does not keep the lock.
 */
class LossSignal implements Listener {
  static readonly #alive = new WeakMap<AbortSignal, LossSignal>();
  readonly #controller = new AbortController();

  constructor() {
    LossSignal.#alive.set(this.signal, this);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  ended(loss: Loss | undefined): void {
    if (loss !== undefined) {
      this.#controller.abort(lossError(loss));
    }
  }
}

function onlyLockErrors(error: unknown): void {
  if (!(error instanceof LockError)) {
    throw error;
  }
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && error.name === "AbortError";
}
