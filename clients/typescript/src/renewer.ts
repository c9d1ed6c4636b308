/**
 * Renews all locks of a connection object that are held, many in one request, and ends those that
 * could not be saved. One timer, which is set for the next lock that needs anything.
 */

import type { Engine } from "./engine.js";
import { Invalid, LockError, LockLost, Refused } from "./errors.js";
import type { Record } from "./record.js";
import { type Timer, background } from "./timers.js";
import { Garbled, type Json, claimStatus, renewals } from "./wire.js";

/** Claims in one request. */
const MOST_CLAIMS = 1_000;
/** Timers stop during suspend; deadlines do not. In milliseconds. */
const LONGEST_SLEEP = 1_000;

export class Renewer {
  readonly #engine: Engine;
  readonly #records = new Set<Record>();
  #timer: Timer | undefined;
  /** When the timer fires, by the engine's clock. */
  #armed = Infinity;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** Takes care of a lock from here on. */
  enlist(record: Record): void {
    this.#records.add(record);
    this.schedule(record);
  }

  /** Leaves a lock alone that has ended. */
  delist(record: Record): void {
    this.#records.delete(record);
    if (this.#records.size === 0) {
      this.#disarm();
    }
  }

  /** Looks at a record not later than something is to be done about it. */
  schedule(record: Record): void {
    if (this.#records.has(record)) {
      this.#arm(record.nextEvent());
    }
  }

  /** Renews no more; returns what is held. */
  stop(): Record[] {
    const records = [...this.#records];
    this.#records.clear();
    this.#disarm();
    return records;
  }

  /** Sets the timer, unless it fires early enough. */
  #arm(event: number): void {
    const now = this.#engine.clock.now();
    const at = Math.min(Math.max(event, now), now + LONGEST_SLEEP);
    if (at < this.#armed) {
      clearTimeout(this.#timer);
      this.#armed = at;
      // Upwards: a timer that fires too early would only be set again.
      this.#timer = background(Math.ceil(at - now), () => this.#tick());
    }
  }

  #disarm(): void {
    clearTimeout(this.#timer);
    this.#armed = Infinity;
  }

  #tick(): void {
    this.#armed = Infinity;
    const now = this.#engine.clock.now();
    let due = false;
    for (const record of [...this.#records]) {
      this.#engine.expired(record);
      if (record.isDone) {
        this.#records.delete(record);
      } else {
        due ||= record.due <= now && !record.asking;
      }
    }
    const batch = due ? this.#renewable(now) : [];
    for (let begin = 0; begin < batch.length; begin += MOST_CLAIMS) {
      void this.#renew(batch.slice(begin, begin + MOST_CLAIMS));
    }
    let next = Infinity;
    for (const record of this.#records) {
      next = Math.min(next, record.nextEvent());
    }
    if (this.#records.size > 0) {
      this.#arm(next);
    }
  }

  /**
   * What may as well be renewed when anything is. What nothing refers to any more is given back
   * instead: a finalizer may come late, or never.
   */
  #renewable(now: number): Record[] {
    const batch: Record[] = [];
    for (const record of [...this.#records]) {
      if (!record.renewable(now)) {
        continue;
      }
      if (record.owner !== undefined) {
        batch.push(record);
      } else {
        this.#engine.abandoned(record);
      }
    }
    return batch;
  }

  async #renew(batch: Record[]): Promise<void> {
    for (const record of batch) {
      record.asking = true;
    }
    try {
      await this.#ask(batch);
    } finally {
      for (const record of batch) {
        record.asking = false;
        this.schedule(record);
      }
    }
  }

  async #ask(batch: Record[]): Promise<void> {
    const { clock, settings } = this.#engine;
    // What is over already sets no limit to the others.
    const left = batch.map((it) => it.remaining()).filter((it) => it > 0);
    // Short enough for another try, long enough for a slow server.
    const limit = Math.min(Math.min(...left) / 2, settings.timeout);
    const sent = clock.now();
    const body = { claims: batch.map((it) => it.claim.json()) };
    let answers: Json[];
    try {
      answers = await this.#engine.ask({ path: "/v1/renew", body, read: renewals, limit });
      if (answers.length !== batch.length) {
        throw otherVersion();
      }
    } catch (error) {
      if (isOfOne(error) && batch.length > 1) {
        // What is wrong with one claim costs that one only: look for it.
        const half = Math.floor(batch.length / 2);
        await this.#ask(batch.slice(0, half));
        await this.#ask(batch.slice(half));
        return;
      }
      const failure = error instanceof LockError ? error : new Refused(String(error));
      this.#engine.retrying(failure);
      for (const record of batch) {
        record.renewalFailed(failure);
      }
      return;
    }
    batch.forEach((record, at) => this.#take(record, answers[at]!, sent));
  }

  #take(record: Record, answer: Json, sent: number): void {
    try {
      this.#engine.renewed(record, claimStatus(answer), sent);
    } catch (error) {
      if (error instanceof LockLost) {
        const { reason, broken } = error;
        this.#engine.renewed(record, { state: "ended", reason, broken }, sent);
      } else if (error instanceof LockError) {
        record.renewalFailed(error);
      } else if (error instanceof Garbled) {
        record.renewalFailed(otherVersion());
      } else {
        throw error;
      }
    }
  }
}

/** Whether an error is about one claim of many. */
function isOfOne(error: unknown): boolean {
  return error instanceof Invalid || (error instanceof Refused && error.code === "forbidden");
}

export function otherVersion(): Refused {
  return new Refused("an answer of another version of the service");
}
