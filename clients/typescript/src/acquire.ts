/** One claim on its way into the queue of a lock, until it holds or is taken out again. */

import type { Engine } from "./engine.js";
import { LockError, LockLost, Unavailable } from "./errors.js";
import { Record, backoff } from "./record.js";
import { otherVersion } from "./renewer.js";
import { type Signals, sleep } from "./timers.js";
import {
  Claim,
  type ClaimStatus,
  Garbled,
  type Held,
  type Json,
  LONGEST_WAIT,
  type Request,
  UNPOLLED,
  acquireBody,
  claimStatus,
  lease,
  renewals,
  stays,
} from "./wire.js";

/** The claim was lost in the queue, or granted too late: ask with another one. */
const RETRY = Symbol("retry");

/** An answer, and when its request was sent. */
interface Answered {
  readonly status: ClaimStatus;
  readonly sent: number;
}

/**
 * A claim, and the requests that take it to its lock. However this ends, but with a lock, the claim
 * is taken out.
 */
class Attempt {
  readonly #engine: Engine;
  readonly #claim: Claim;
  readonly #wait: boolean;
  /** What ends it: signals of its caller, and the end of the connection object. */
  readonly #signals: Signals;
  /** A request got no answer, and may yet put the claim into the queue. */
  #uncertain = false;
  /** The claim may be in the queue now. */
  #queued = false;
  /** A request is under way. */
  #asking = false;
  #roundTrip = 0;

  constructor(engine: Engine, request: Request, wait: boolean, signals: Signals) {
    this.#engine = engine;
    this.#claim = new Claim(request, engine.settings.namespace, engine.settings.holder);
    this.#wait = wait;
    this.#signals = signals;
  }

  /** The lock, which `own` is given; `undefined` when it was busy. */
  async run<T>(own: (record: Record) => T): Promise<T | undefined | typeof RETRY> {
    try {
      let answered = await this.#enter();
      let polled = false;
      while (answered?.status.state === "waiting") {
        this.#uncertain ||= answered.status.ambiguous > 0;
        answered = await this.#poll();
        polled = true;
      }
      const granted = polled && answered?.status.state === "held" && answered.status;
      if (granted && !this.#record(granted, answered!.sent)) {
        // The poll was sent longer ago than the ttl, and was answered when the lock was granted: an
        // answer to another one, which renews, says how much is left.
        answered = await this.#poll();
      }
      const record = answered === undefined ? RETRY : await this.#settled(answered);
      if (!(record instanceof Record)) {
        return record;
      }
      this.#checkOpen();
      const lock = own(record);
      this.#queued = false;
      return lock;
    } finally {
      if (this.#queued) {
        this.#engine.giveBack(this.#claim, this.#uncertain || this.#asking);
      }
    }
  }

  /** The answer to the acquire; `undefined`: too late for this claim. */
  async #enter(): Promise<Answered | undefined> {
    const { clock } = this.#engine;
    const { waitTtl } = this.#claim.request;
    const body = acquireBody(this.#claim, this.#wait);
    const first = clock.now();
    for (let failures = 0; ; failures++) {
      this.#checkOpen();
      const sent = clock.now();
      // Later it may have been in the queue and have ended there: it must not revive.
      if (failures > 0 && sent >= first + waitTtl) {
        return undefined;
      }
      this.#queued = this.#asking = true;
      try {
        const status = await this.#ask("/v1/acquire", body, claimStatus, waitTtl / 3);
        this.#asking = false;
        this.#roundTrip = clock.now() - sent;
        return { status, sent };
      } catch (error) {
        await this.#failed(error, failures + 1);
      }
    }
  }

  /** Throws an error that stays; pauses after one that may pass. */
  async #failed(error: unknown, failures: number): Promise<void> {
    this.#checkOpen(); // what was cut may be under way: `asking` stays
    this.#asking = false;
    this.#uncertain ||= error instanceof LockError && error.maybeDone;
    this.#queued = this.#uncertain;
    if (!(error instanceof Unavailable) || !this.#wait) {
      throw error;
    }
    await this.#engine.pause(error, failures, this.#signals);
  }

  /** Asks for the state of the claim, which waits for a change. */
  async #poll(): Promise<Answered> {
    const { clock } = this.#engine;
    const { waitTtl } = this.#claim.request;
    for (let failures = 0; ; ) {
      this.#checkOpen();
      const waits = this.#engine.beginPoll();
      // Nothing renews it meanwhile: half of its wait ttl is for the poll, a quarter for the answer,
      // a quarter for asking another server.
      const poll = waits ? Math.min(LONGEST_WAIT, waitTtl / 2) : 0;
      const body = { claim: this.#claim.json(), wait_ms: Math.floor(poll) };
      const sent = clock.now();
      try {
        const status = await this.#ask("/v1/wait", body, claimStatus, waitTtl / 4, poll);
        if (!waits && status.state === "waiting") {
          await sleep(Math.min(UNPOLLED, waitTtl / 4), this.#signals);
        }
        return { status, sent };
      } catch (error) {
        this.#checkOpen();
        if (!(error instanceof Unavailable)) {
          throw error;
        }
        failures += 1;
        await this.#engine.pause(error, failures, this.#signals);
      } finally {
        if (waits) {
          this.#engine.endPoll();
        }
      }
    }
  }

  async #settled({ status, sent }: Answered): Promise<Record | undefined | typeof RETRY> {
    switch (status.state) {
      case "held":
        this.#uncertain ||= status.ambiguous > 0;
        return (await this.#granted(status, sent)) ?? RETRY;
      case "ended":
        this.#queued = this.#uncertain || stays(status);
        if (status.reason === "broken") {
          throw new LockLost(status.reason, status.broken);
        }
        return RETRY;
      default:
        this.#uncertain ||= status.ambiguous > 0;
        // One that held, and waits now, is in the queue: the backend lost what it knew.
        this.#queued = this.#uncertain || status.state === "waiting";
        return this.#wait ? RETRY : undefined;
    }
  }

  async #granted(held: Held, sent: number): Promise<Record | undefined> {
    const record = this.#record(held, sent);
    return record?.isShort(this.#roundTrip) ? this.#lengthened(record) : record;
  }

  /** A lock that is valid; `undefined` where the answer came after the lease. */
  #record(held: Held, sent: number): Record | undefined {
    const record = new Record(this.#claim, this.#engine.clock, this.#uncertain);
    return record.grant(held, sent) ? record : undefined;
  }

  /**
   * Renews a lease of which so little is left that its first use might fail; asks so until it is
   * over: one that waited for an hour does not give up its lock for a lost packet.
   *
   * The caller does not have the lock yet, so an answer may come after the deadline of the first one:
   * what it says counts from its own request.
   */
  async #lengthened(record: Record): Promise<Record | undefined> {
    const body = { claims: [this.#claim.json()] };
    for (let failures = 1; record.remaining() > 0; failures++) {
      this.#checkOpen();
      const sent = this.#engine.clock.now();
      try {
        const patience = lease(this.#claim.request);
        const [answer] = await this.#ask("/v1/renew", body, renewals, patience);
        const status = claimStatus(answer ?? {});
        return status.state === "held" ? this.#record(status, sent) : undefined;
      } catch (error) {
        this.#checkOpen();
        if (error instanceof Garbled) {
          throw otherVersion();
        }
        if (!(error instanceof Unavailable)) {
          throw error;
        }
        this.#engine.retrying(error);
        await sleep(Math.min(backoff(failures), record.remaining()), this.#signals);
      }
    }
    return undefined;
  }

  /** A request of a claim on its way: ends when its caller or the connection object says so. */
  #ask<T>(path: string, body: Json, read: (it: Json) => T, patience: number, poll = 0): Promise<T> {
    const limit = poll + Math.max(100, Math.min(this.#engine.settings.timeout, patience));
    return this.#engine.ask({ path, body, read, limit, signals: this.#signals });
  }

  #checkOpen(): void {
    throwIfAborted(this.#signals);
  }
}

function throwIfAborted(signals: Signals): void {
  for (const signal of signals) {
    signal?.throwIfAborted();
  }
}

/**
 * The lock, which `own` makes of its record; `undefined` when it was not to be waited for and was
 * busy. Rejects with the reason of a signal that fires.
 */
export async function acquire<T>(
  engine: Engine,
  request: Request,
  own: (record: Record) => T,
  wait: boolean,
  callers: Signals,
): Promise<T | undefined> {
  const signals = [engine.closing, ...callers];
  const first = engine.clock.now();
  for (let attempts = 1; ; attempts++) {
    throwIfAborted(signals);
    const lock = await new Attempt(engine, request, wait, signals).run(own);
    if (lock !== RETRY) {
      return lock;
    }
    if (!wait && engine.clock.now() >= first + request.ttl) {
      throw new Unavailable("the answer came after the lease that it granted was over");
    }
    await sleep(backoff(attempts), signals);
  }
}
