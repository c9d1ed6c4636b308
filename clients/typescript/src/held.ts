/** What is held until it is released: a lock, a slot, several locks. */

import type { Engine } from "./engine.js";
import { LockError, LockLost } from "./errors.js";
import { type Listener, type Loss, type Record, lossError } from "./record.js";

// Missing from Node before 20.4 and from browsers of 2024, where `await using` is compiled away.
export const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);
const inspect = Symbol.for("nodejs.util.inspect.custom");

/** @internal A lock of the backend, and the engine that keeps it. */
export interface Part {
  readonly engine: Engine;
  readonly record: Record;
}

let parts: (held: Held) => readonly Part[];

/**
 * What is held, and renewed in the background, until it is released: valid while all its parts are,
 * and lost with the first of them. Reading is without I/O.
 */
export abstract class Held implements AsyncDisposable {
  readonly #parts: readonly Part[];
  #signal: LossSignal | undefined;

  static {
    parts = (held) => held.#parts;
  }

  /** @internal */
  constructor(parts: readonly Part[]) {
    this.#parts = parts;
  }

  /**
   * Whether it is held now, by this client's own clock. `false` before any other client can get the
   * lock.
   */
  get isValid(): boolean {
    return this.remaining > 0;
  }

  /** How long it is valid without another renewal, in milliseconds; 0 when it is not. */
  get remaining(): number {
    return Math.min(...this.#parts.map(({ record }) => record.remaining()));
  }

  /**
   * Fires when it is lost, with a `LockLost` as its reason; never after a release. Give it to what
   * works under the lock.
   *
   * It is fired by a timer. Where timers stand still, in a machine that sleeps or under code that
   * does not yield, it fires late: check the token where it counts.
   */
  get signal(): AbortSignal {
    // The timer may not have looked yet.
    this.#parts.forEach(({ engine, record }) => engine.expired(record));
    if (this.#signal === undefined) {
      this.#signal = new LossSignal();
      for (const { record } of this.#parts) {
        record.tell(this.#signal);
      }
    }
    return this.#signal.signal;
  }

  /** Gives it back; settles once the service knows. */
  abstract release(): Promise<void>;

  /**
   * Runs `work` with this, and releases it when the work has ended. When it is lost, `signal` fires,
   * and this rejects with `LockLost` once the work has ended. Without running it, rejects with
   * `LockLost` or `LockReleased` when it is not held any more.
   */
  async run<T>(work: (held: this) => T | PromiseLike<T>): Promise<T> {
    let result: T;
    try {
      this.#parts.forEach(({ record }) => record.token());
      result = await work(this);
    } catch (error) {
      const failure = stopped(this, error);
      // The work has failed by itself: what becomes of the release is of less interest.
      await this.release().catch(onlyLockErrors);
      throw failure;
    }
    await this[asyncDispose]();
    return result;
  }

  /**
   * The end of `await using`: releases it, and rejects with `LockLost` if it was not held until then.
   * When the service does not answer, the block ends normally and the release goes on in the
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

  /** @internal */
  [inspect](): string {
    return `<${this}>`;
  }
}

/** @internal */
export function partsOf(held: Held): readonly Part[] {
  return parts(held);
}

/** @internal The error of work that failed: `LockLost` where it was stopped because of that. */
export function stopped(held: Held, error: unknown): unknown {
  const [loss] = parts(held).flatMap(({ record }) => record.loss() ?? []);
  const isAbort = error instanceof Error && error.name === "AbortError";
  return loss !== undefined && isAbort ? lossError(loss, { cause: error }) : error;
}

/** @internal Throws what became of several releases: a loss before any other error. */
export function checkReleased(results: readonly PromiseSettledResult<void>[]): void {
  const errors = results.flatMap((it) => (it.status === "rejected" ? [it.reason as unknown] : []));
  if (errors.length > 0) {
    throw errors.find((it) => it instanceof LockLost) ?? errors[0];
  }
}

/** @internal */
export function onlyLockErrors(error: unknown): void {
  if (!(error instanceof LockError)) {
    throw error;
  }
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
