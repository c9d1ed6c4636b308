/** How a lock is kept and given back: the claims of one connection object. */

import { AgreeingClock, type Clock } from "./clock.js";
import { Closed, Invalid, LockError, Unavailable, Unsupported } from "./errors.js";
import { type Loss, Record, backoff, lossError } from "./record.js";
import { Renewer } from "./renewer.js";
import { type ConnectOptions, IN_BROWSER, type Settings, settings } from "./settings.js";
import { LONGEST_TIMER, type Signals, quietSleep, sleep } from "./timers.js";
import { type Ask, Transport } from "./transport.js";
import {
  type Claim,
  type ClaimStatus,
  claimStatus,
  found,
  lease,
  shortened,
  stays,
} from "./wire.js";

/** How often a warning says that the service does not answer, in milliseconds. */
const WARN_EVERY = 30_000;
/** Requests that wait at the same time. A browser has six connections to a server, for all its pages. */
const MOST_POLLS = IN_BROWSER ? 2 : 100;

/** A request without what the engine knows by itself. */
type Asked<T> = Omit<Ask<T>, "limit"> & { readonly limit?: number };

export class Engine {
  readonly settings: Settings;
  readonly clock: Clock;
  /** Fires when this is closed. */
  readonly closing: AbortSignal;
  readonly #close = new AbortController();
  readonly #transport: Transport;
  readonly #renewer: Renewer;
  readonly #dropped: FinalizationRegistry<Record>;
  readonly #warn: (message: string) => void;
  /** Releases in the background that the service has not confirmed. */
  readonly #releases = new Set<Promise<void>>();
  readonly #acquires = new Set<Promise<unknown>>();
  /** Lock objects that are being left to their least hold. */
  readonly #held = new Set<object>();
  #nextWarning = -Infinity;
  #polls = 0;

  constructor(url: string, options: ConnectOptions) {
    this.settings = settings(url, options);
    this.clock = options.clock ?? new AgreeingClock();
    this.closing = this.#close.signal;
    this.#transport = new Transport(this.settings, options.fetch);
    this.#renewer = new Renewer(this);
    this.#dropped = new FinalizationRegistry((record) => this.abandoned(record));
    this.#warn = options.warn ?? ((message) => console.warn(message));
  }

  checkOpen(): void {
    if (this.closing.aborted) {
      throw new Closed();
    }
  }

  /** One request, sent once; see `Transport.ask`. */
  ask<T>(ask: Asked<T>): Promise<T> {
    return this.#transport.ask({ limit: this.settings.timeout, ...ask });
  }

  /** Says now and then that a request failed which is repeated: for all that wait, once. */
  retrying(error: LockError): void {
    const now = performance.now();
    if (now >= this.#nextWarning) {
      this.#nextWarning = now + WARN_EVERY;
      this.#warn(`the lock service does not answer, and is asked again: ${error.message}`);
    }
  }

  /** Before a request is repeated that failed. */
  async pause(error: LockError, failures: number, signals: Signals): Promise<void> {
    this.retrying(error);
    await sleep(backoff(failures), signals);
  }

  /** Takes one of the few connections on which requests wait; `false` when all are taken. */
  beginPoll(): boolean {
    const free = this.#polls < MOST_POLLS;
    this.#polls += free ? 1 : 0;
    return free;
  }

  endPoll(): void {
    this.#polls--;
  }

  /** Counts an acquire in: closing waits until it has ordered its release. */
  async acquiring<T>(work: Promise<T>): Promise<T> {
    this.#acquires.add(work);
    try {
      return await work;
    } finally {
      this.#acquires.delete(work);
    }
  }

  /**
   * Keeps a lock as long as its object lives. The record knows the object before the renewer knows
   * the record, which gives back what has none.
   */
  keep(record: Record, owner: object): void {
    record.keptBy(owner);
    this.#dropped.register(owner, record, record);
    this.#renewer.enlist(record);
  }

  /** Gives the lock back; throws `LockLost` if it was not held until now. */
  async release(record: Record): Promise<void> {
    if (record.leaving) {
      return;
    }
    if (record.leftUntil > 0 && record.remaining() > 0) {
      // Its caller need not keep the lock object until then.
      const owner = record.owner ?? record;
      this.#held.add(owner);
      try {
        if (await this.#left(record)) {
          return;
        }
      } finally {
        this.#held.delete(owner);
      }
    }
    const loss = record.loss();
    const { claim } = record;
    const until = this.clock.now() + record.remaining();
    const closedUntil = record.closedUntil();
    if (record.close()) {
      this.#forget(record);
      if (loss !== undefined) {
        // The lease may live longer at the backend: answers to renewals may have been lost.
        this.giveBack(claim, record.uncertain, closedUntil);
      }
    } else if (loss === undefined) {
      return;
    }
    this.#giveBackBroken(record);
    if (loss !== undefined) {
      throw lossError(loss);
    }
    let what = "";
    let attempts = 0;
    let maybeReleased = false;
    try {
      while (what === "") {
        try {
          what = await this.#released(claim);
        } catch (error) {
          attempts += 1;
          if (!(error instanceof Unavailable) || attempts === 2) {
            throw error;
          }
          maybeReleased = error.maybeDone;
          this.retrying(error);
        }
      }
    } finally {
      if (what === "" || record.uncertain) {
        this.giveBack(claim, record.uncertain);
      }
    }
    // An attempt whose answer was lost may have released it.
    if (what !== "claim" && !maybeReleased) {
      throw lossError(await this.#lossOf(claim, this.clock.now() < until));
    }
  }

  /**
   * Leaves a lock to a lease that ends with its least hold; `false` once that is over, where the
   * backend cannot, so that it was held and renewed until then.
   */
  async #left(record: Record): Promise<boolean> {
    const { claim, leftUntil } = record;
    if (!record.uncertain) {
      record.leaving = true;
      try {
        const status = await this.#shorten(claim, leftUntil);
        if (status.state !== "ended") {
          if (record.close()) {
            this.#forget(record);
          }
          return true;
        }
        record.leaving = false;
        this.renewed(record, status, this.clock.now());
      } catch (error) {
        if (!(error instanceof Unsupported)) {
          if (record.close()) {
            this.#forget(record);
            this.giveBack(claim, false, 0, leftUntil);
          }
          throw error;
        }
        record.leaving = false;
        this.#renewer.schedule(record);
      }
    }
    while (record.leftUntil > 0 && record.remaining() > 0) {
      await sleep(Math.min(1_000, Math.max(1, leftUntil - this.clock.now())));
    }
    return false;
  }

  /** Has the lease of a claim end at this time. */
  #shorten(claim: Claim, end: number): Promise<ClaimStatus> {
    const body = shortened(claim, Math.max(100, end - this.clock.now()));
    return this.ask({ path: "/v1/shorten", body, read: claimStatus });
  }

  /** Why a claim was not there any more when it was released: the service knows of a break. */
  async #lossOf(claim: Claim, early: boolean): Promise<Loss> {
    try {
      const status = await this.#status("/v1/verify", claim);
      if (status.state === "ended" && status.reason !== "vanished") {
        return { reason: status.reason, broken: status.broken };
      }
    } catch (error) {
      if (!(error instanceof LockError)) {
        throw error;
      }
    }
    return { reason: early ? "vanished" : "expired" };
  }

  /** Asks the backend whether the lock is held. It renews, too. */
  async verify(record: Record): Promise<void> {
    record.token();
    const sent = this.clock.now();
    this.renewed(record, await this.#status("/v1/verify", record.claim), sent);
    record.token();
  }

  /**
   * Lets readers in beside the one that wrote. Where this ends otherwise, and they may be in already,
   * the lock is given back: it says that it excludes them.
   */
  async downgrade(record: Record): Promise<void> {
    if (record.claim.request.mode !== "exclusive") {
      throw new Invalid("only a lock that is held for writing can be downgraded");
    }
    let maybeDone = false;
    try {
      for (let failures = 1; ; failures++) {
        record.token();
        const sent = this.clock.now();
        try {
          const limit = Math.max(100, Math.min(this.settings.timeout, record.remaining()));
          const status = await this.#status("/v1/downgrade", record.claim, limit);
          if (status.state === "held") {
            record.downgraded();
          }
          this.renewed(record, status, sent);
          record.token();
          return;
        } catch (error) {
          maybeDone ||= !(error instanceof LockError) || error.maybeDone;
          if (!(error instanceof Unavailable)) {
            throw error;
          }
          this.retrying(error);
          await sleep(Math.min(backoff(failures), record.remaining()));
        }
      }
    } catch (error) {
      if (maybeDone) {
        this.abandoned(record);
      }
      throw error;
    }
  }

  /** Takes the answer to a renewal that was sent at `sent`. */
  renewed(record: Record, status: ClaimStatus, sent: number): void {
    if (record.isOver) {
      return;
    }
    const leaseEnd = record.leaseEnd();
    record.renewed(status, sent);
    if (!record.isOver) {
      this.#renewer.schedule(record);
    } else if (record.isDone) {
      this.#forget(record);
      if (record.uncertain || status.state === "waiting") {
        const delayed = status.state === "ended" && stays(status);
        this.giveBack(record.claim, record.uncertain, delayed ? leaseEnd : 0);
      }
    }
  }

  #status(path: string, claim: Claim, limit = this.settings.timeout): Promise<ClaimStatus> {
    return this.ask({ path, body: { claim: claim.json() }, read: claimStatus, limit });
  }

  #released(claim: Claim): Promise<string> {
    return this.ask({ path: "/v1/release", body: { claim: claim.json() }, read: found });
  }

  #forget(record: Record): void {
    this.#renewer.delist(record);
    this.#dropped.unregister(record);
  }

  /** Gives a lock back that is not to be used any more. */
  abandoned(record: Record): void {
    this.#drop(record, "dropped");
  }

  #drop(record: Record, reason: "dropped" | "closed"): void {
    const { leftUntil } = record;
    const closedUntil = record.closedUntil();
    if (record.lose(record.loss() ?? { reason })) {
      this.#forget(record);
      this.giveBack(record.claim, record.uncertain, closedUntil, leftUntil);
    }
    this.#giveBackBroken(record);
  }

  /** Gives a lock back that was lost by a graceful break, once its holder is done with it. */
  #giveBackBroken(record: Record): void {
    if (record.stays) {
      record.stays = false;
      this.#forget(record);
      this.giveBack(record.claim, record.uncertain);
    }
  }

  /**
   * Ends a lock whose deadline has passed. Its lease ends in full: whoever worked under it may not
   * have noticed yet.
   */
  expired(record: Record): void {
    const leaseEnd = record.leaseEnd();
    if (record.expire()) {
      this.#forget(record);
      this.giveBack(record.claim, record.uncertain, leaseEnd);
    }
  }

  /** Releases a claim in the background. */
  giveBack(claim: Claim, uncertain: boolean, notBefore = 0, leastEnd = 0): void {
    const confirmed = new Promise<void>((resolve) => {
      void this.#givingBack(claim, uncertain, notBefore, leastEnd, resolve);
    });
    this.#releases.add(confirmed);
    void confirmed.then(() => this.#releases.delete(confirmed));
  }

  /**
   * Releases a claim until the service says that it did, or until its lease is over anyway; when an
   * acquire may still be under way, again and again until then. One that is to stay held is left to a
   * lease that ends then, where the backend can do so.
   */
  async #givingBack(
    claim: Claim,
    uncertain: boolean,
    notBefore: number,
    leastEnd: number,
    confirmed: () => void,
  ): Promise<void> {
    for (let attempts = 1; !uncertain && leastEnd > this.clock.now(); attempts++) {
      try {
        await this.#shorten(claim, leastEnd);
        confirmed();
        return;
      } catch (error) {
        if (error instanceof Unsupported) {
          break;
        }
        this.retrying(error instanceof LockError ? error : new Unavailable(String(error)));
      }
      await quietSleep(backoff(attempts));
    }
    const begin = Math.max(notBefore, leastEnd);
    for (let left; (left = begin - this.clock.now()) > 0; ) {
      await quietSleep(Math.min(1_000, left));
    }
    const giveUp = this.clock.now() + Math.max(lease(claim.request), claim.request.waitTtl);
    for (let attempts = 1; ; attempts++) {
      try {
        await this.#released(claim);
        confirmed();
        if (!uncertain) {
          return;
        }
      } catch (error) {
        // Also where it is refused: a certificate that is wrong for a second must not leave a lock
        // taken for its ttl.
        this.retrying(error instanceof LockError ? error : new Unavailable(String(error)));
      }
      if (this.clock.now() >= giveUp) {
        confirmed();
        return;
      }
      await quietSleep(backoff(attempts));
    }
  }

  /**
   * Ends what waits, gives back what is held, and waits until the service knows, for so long at
   * most.
   */
  async close(limit: number): Promise<void> {
    if (this.closing.aborted) {
      return;
    }
    this.#close.abort(new Closed());
    for (const record of this.#renewer.stop()) {
      this.#drop(record, "closed");
    }
    let timer;
    // It keeps the process alive: the caller waits, and a pause between two releases keeps none.
    const elapsed = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, Math.min(limit, LONGEST_TIMER));
    });
    // What was cancelled orders its releases.
    await Promise.race([elapsed, Promise.allSettled(this.#acquires)]);
    await Promise.race([elapsed, Promise.allSettled(this.#releases)]);
    clearTimeout(timer);
  }
}
