/** A lock that is held. */

import type { Engine } from "./engine.js";
import { Held, type Part, partsOf } from "./held.js";
import type { Record } from "./record.js";
import type { Mode } from "./state.js";

/** A job under a lock. */
export type Work<T> = (lock: Lock) => T | PromiseLike<T>;

/**
 * A lock that is held, and renewed in the background.
 *
 * A lock object that nothing refers to any more is not renewed, and is released in the background: at
 * the latest when its lease would be renewed next. Reading is without I/O.
 */
export class Lock extends Held {
  readonly #engine: Engine;
  readonly #record: Record;

  /** @internal */
  constructor(engine: Engine, record: Record) {
    super([{ engine, record }]);
    this.#engine = engine;
    this.#record = record;
    engine.keep(record, this);
  }

  /** The name of the lock. */
  get name(): string {
    return this.#record.claim.request.name;
  }

  get mode(): Mode {
    return this.#record.claim.request.mode;
  }

  /**
   * The fencing token: give it along with every write that the lock protects.
   *
   * A later conflicting holder has a greater token. Throws `LockLost` once the lock is not valid, and
   * `LockReleased` after its release.
   */
  get token(): bigint {
    return this.#record.token();
  }

  /**
   * Gives the lock back; settles once the service knows. Releasing again does nothing.
   *
   * Rejects with `LockLost` when the lock was not held until now: what was done under it may have met
   * another client's work. After `Unavailable` the background goes on releasing until the lease is
   * over. A lock with a least hold is left to a lease of the rest; where the backend cannot do so, it
   * is held until then.
   */
  release(): Promise<void> {
    return this.#engine.release(this.#record);
  }

  /**
   * Asks the backend whether the lock is held, and renews it. Rejects with `LockLost` or
   * `Unavailable`.
   */
  verify(): Promise<void> {
    return this.#engine.verify(this.#record);
  }

  /**
   * Of a lock held for writing: keeps it for reading, and lets other readers in. The token stays.
   * Rejects with `Invalid` for other locks, with `LockLost` when it is not held. After another error
   * the lock is given back (`dropped`), unless it is certain that nothing was done.
   */
  downgrade(): Promise<void> {
    return this.#engine.downgrade(this.#record);
  }

  override toString(): string {
    return `Lock ${JSON.stringify(this.name)} ${this.mode}, ${this.isValid ? "" : "not "}valid`;
  }
}

/** @internal */
export function recordOf(lock: Lock): Record {
  return partOf(lock).record;
}

/** @internal */
export function engineOf(lock: Lock): Engine {
  return partOf(lock).engine;
}

function partOf(lock: Lock): Part {
  return partsOf(lock)[0]!;
}
