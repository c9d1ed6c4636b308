/** Slots: a permit of a semaphore, and then the lock of the lowest number that is free. */

import type { Engine } from "./engine.js";
import { Invalid, Unavailable } from "./errors.js";
import { Held, checkReleased, partsOf } from "./held.js";
import { list } from "./inspect.js";
import { type Lock, recordOf } from "./lock.js";
import { Semaphore } from "./primitives.js";
import { backoff } from "./record.js";
import { type AcquireOptions, Source, waited, within } from "./source.js";
import { type Signals, sleep } from "./timers.js";
import type { Request } from "./wire.js";

/** The longest name of slots: a lock's name has room for a number behind it. */
const MOST_BYTES = 480;
/** How often a try lists the slots. */
const TRIES = 3;

/**
 * A slot that is held, and renewed in the background: the lock of its number and a permit. One that
 * nothing refers to any more is released in the background.
 */
export class Slot extends Held {
  readonly #name: string;
  readonly #number: number;
  readonly #lock: Lock;
  readonly #permit: Lock;

  /** @internal */
  constructor(name: string, number: number, lock: Lock, permit: Lock) {
    super([lock, permit].flatMap(partsOf));
    this.#name = name;
    this.#number = number;
    this.#lock = lock;
    this.#permit = permit;
  }

  /** The name of the slots, without the number. */
  get name(): string {
    return this.#name;
  }

  /** Which slot: 0 is the first. */
  get number(): number {
    return this.#number;
  }

  /**
   * The fencing token of this number: it grows from holder to holder. Throws `LockLost` once the slot
   * or its permit is not valid, and `LockReleased` after the release.
   */
  get token(): bigint {
    void this.#permit.token;
    return this.#lock.token;
  }

  /** The lock of this number: for registers, which check its token. Do not release it. */
  get lock(): Lock {
    return this.#lock;
  }

  /**
   * Gives back the slot and then its permit; settles once the service knows. Rejects with `LockLost`
   * when one of them was not held until now. Releasing again does nothing.
   */
  async release(): Promise<void> {
    // One after the other: a client that gets the permit looks for a slot.
    const [slot] = await Promise.allSettled([this.#lock.release()]);
    const [permit] = await Promise.allSettled([this.#permit.release()]);
    checkReleased([slot, permit]);
  }

  override toString(): string {
    const name = JSON.stringify(this.#name);
    return `Slot ${name} ${this.#number}, ${this.isValid ? "" : "not "}valid`;
  }
}

/**
 * So many numbers, each held by one client at a time, the lowest free one first. Clients that wait get
 * theirs in the order of coming. Rejects with `LimitMismatch` while the name is in use with another
 * number of slots, with `Unsupported` on a quorum or a mirror.
 */
export class Slots {
  readonly #engine: Engine;
  readonly #request: Request;
  readonly #semaphore: Semaphore;

  /** @internal */
  constructor(engine: Engine, request: Request, slots: number, resizable = false) {
    if (new TextEncoder().encode(request.name).length > MOST_BYTES) {
      throw new Invalid(`a name of slots has at most ${MOST_BYTES} bytes`);
    }
    if (!Number.isInteger(slots) || (slots < 1 && !resizable)) {
      throw new Invalid("there is one slot at least, and a whole number of them");
    }
    this.#engine = engine;
    this.#request = request;
    this.#semaphore = new Semaphore(engine, request, slots, resizable);
  }

  /** Waits for a slot. While the service is out of reach, this goes on trying. */
  acquire({ signal }: AcquireOptions = {}): Promise<Slot> {
    return waited(this.#take(true, [signal]));
  }

  /** A slot if one is free and no other claim waits; otherwise `undefined`, at once. */
  tryAcquire({ signal }: AcquireOptions = {}): Promise<Slot | undefined> {
    return this.#take(false, [signal]);
  }

  /** Waits for a slot, but not longer than so many milliseconds; then `undefined`. */
  tryAcquireFor(timeout: number, { signal }: AcquireOptions = {}): Promise<Slot | undefined> {
    return within(timeout, signal, (wait, signals) => this.#take(wait, signals));
  }

  /** Waits for a slot, and runs `work(slot)` under it; see `Lock.run`. */
  async run<T>(
    work: (slot: Slot) => T | PromiseLike<T>,
    options: AcquireOptions = {},
  ): Promise<T> {
    return (await this.acquire(options)).run(work);
  }

  /** A permit, and then a slot; again from the beginning when the permit is lost before that. */
  async #take(wait: boolean, signals: Signals): Promise<Slot | undefined> {
    for (;;) {
      const permit = await this.#semaphore.take(1, wait, signals);
      if (permit === undefined) {
        return undefined;
      }
      const record = recordOf(permit);
      // A permit without a slot is given back at once.
      record.setAtLeast(undefined);
      let slot: Slot | undefined;
      try {
        slot = await this.#find(permit, wait, signals);
        if (slot?.isValid) {
          record.setAtLeast(this.#request.atLeast);
          return slot;
        }
      } catch (error) {
        this.#engine.abandoned(record);
        throw error;
      }
      // One of the two was lost meanwhile, or this does not wait. Whatever the answer: what is not
      // released by now is in the background.
      await (slot ?? permit).release().catch(() => {});
      if (!wait) {
        return undefined;
      }
    }
  }

  /** The lowest slot that is free; `undefined` when there is none, or when the permit is lost. */
  async #find(permit: Lock, wait: boolean, signals: Signals): Promise<Slot | undefined> {
    const { name } = this.#request;
    const slots = recordOf(permit).claim.request.limit ?? 0;
    const beginning = `lockkit.slot/${name}/`;
    for (let rounds = 1; permit.isValid; rounds++) {
      try {
        const taken = await this.#taken(beginning, signals);
        for (let number = 0; number < slots; number++) {
          if (!taken.has(String(number))) {
            const request = { ...this.#request, name: `${beginning}${number}` };
            const lock = await new Source(this.#engine, request).take(false, signals);
            if (lock !== undefined) {
              return new Slot(name, number, lock, permit);
            }
          }
        }
      } catch (error) {
        if (!wait || !(error instanceof Unavailable)) {
          throw error;
        }
        this.#engine.retrying(error);
      }
      if (!wait && rounds === TRIES) {
        return undefined;
      }
      await sleep(backoff(rounds), signals);
    }
    return undefined;
  }

  /** The numbers that are held or waited for, as the names of their locks end. */
  async #taken(beginning: string, signals: Signals): Promise<Set<string>> {
    const states = await list(this.#engine, beginning, signals);
    const taken = states.filter((it) => it.space === "lock" && it.queue.length > 0);
    return new Set(taken.map((it) => it.name.slice(beginning.length)));
  }
}
