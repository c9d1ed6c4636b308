/**
 * The rules of time: how an answer of the service becomes a deadline. They stand here only.
 *
 * 1. A deadline counts from the moment before the request was sent that the service answered, plus
 *    `remaining`, less the margin for clocks of different rates: the greater of ours and of the one
 *    that the answer names. Never from the arrival.
 * 2. A renewal never shortens it.
 * 3. An answer that comes after the deadline does not revive the lock.
 */

import type { Clock } from "./clock.js";
import {
  type BreakRecord,
  type LockError,
  LockLost,
  LockReleased,
  type LossReason,
  Unavailable,
} from "./errors.js";
import { margin } from "./settings.js";
import { type Claim, type ClaimStatus, type Held, stays } from "./wire.js";

/** Why a lock was lost. */
export interface Loss {
  readonly reason: LossReason;
  readonly broken?: BreakRecord | undefined;
  readonly detail?: string;
}

export function lossError({ reason, broken, detail }: Loss, options?: ErrorOptions): LockLost {
  return new LockLost(reason, broken, detail, options);
}

/** What is known of a claim that holds. */
interface Validity {
  readonly token: bigint;
  readonly ttl: number;
  readonly deadline: number;
  /** By how much the lease may last longer. */
  readonly margin: number;
  readonly failures: number;
  /** What the end of the lease would be put down to: the last renewal failed. */
  readonly trouble: Loss | undefined;
}

/** The claim has ended: with a loss, or without one when it was released. */
interface Over {
  readonly loss: Loss | undefined;
}

/** What is told of the end of a claim: with a loss, or without one. */
export interface Listener {
  ended(loss: Loss | undefined): void;
}

/** A claim of this process that holds or held. */
export class Record {
  /** When it is to be renewed. */
  due = Infinity;
  /** Whether a renewal is under way. */
  asking = false;
  /** Its lease is being made to end earlier: it must not be trusted any more. */
  leaving = false;
  /** Its claim was broken, and keeps others out until it is released. */
  stays = false;
  #claim: Claim;
  #validity: Validity | undefined;
  #over: Over | undefined;
  #stop = Infinity;
  /** Until when it is to stay held, whenever it is released. */
  #leastEnd = 0;
  // All weak: the renewer keeps this, and they lead to the lock object. What has no such object any
  // more is not renewed.
  #owner: WeakRef<object> | undefined;
  readonly #listeners: WeakRef<Listener>[] = [];
  readonly #clock: Clock;

  constructor(
    claim: Claim,
    clock: Clock,
    /** Whether an acquire of it got no answer, and may yet put it into the queue after its release. */
    readonly uncertain: boolean,
  ) {
    this.#claim = claim;
    this.#clock = clock;
  }

  get claim(): Claim {
    return this.#claim;
  }

  /** Remembers the lock object, as long as anything else refers to it. */
  keptBy(owner: object): void {
    this.#owner = new WeakRef(owner);
  }

  /** Tells this of the end, as long as anything else refers to it. */
  tell(listener: Listener): void {
    this.#listeners.push(new WeakRef(listener));
    if (this.#over !== undefined) {
      listener.ended(this.#over.loss);
    }
  }

  /** The lock object that refers to it, if any does. */
  get owner(): object | undefined {
    return this.#owner?.deref();
  }

  get isOver(): boolean {
    return this.#over !== undefined;
  }

  /** Whether it has ended, and has no claim left to release. */
  get isDone(): boolean {
    return this.isOver && !this.stays;
  }

  /** The token of a lock that is valid; throws otherwise. */
  token(): bigint {
    const loss = this.loss();
    if (loss !== undefined) {
      throw lossError(loss);
    }
    if (this.#over !== undefined || this.#validity === undefined || this.leaving) {
      throw new LockReleased();
    }
    return this.#validity.token;
  }

  /** How long it is valid without another renewal; 0 when it is not. */
  remaining(): number {
    const isHeld = this.#over === undefined && !this.leaving && this.loss() === undefined;
    if (this.#validity === undefined || !isHeld) {
      return 0;
    }
    return Math.max(0, this.#validity.deadline - this.#clock.now());
  }

  /** Why it was lost, if it was: also when nothing has noticed yet. */
  loss(): Loss | undefined {
    if (this.#over !== undefined) {
      return this.#over.loss;
    }
    const validity = this.#validity;
    if (validity === undefined || this.leaving || this.#clock.now() < validity.deadline) {
      return undefined;
    }
    if (validity.deadline >= this.#stop) {
      return { reason: "maxHold" };
    }
    return validity.trouble ?? { reason: "expired" };
  }

  /** Takes the answer to a request that was sent at `sent`; says whether it holds now. */
  grant(held: Held, sent: number): boolean {
    const now = this.#clock.now();
    const { autoRenew, maxHold, atLeast } = this.#claim.request;
    // The guard ends as if there were no lock delay.
    const ttl = held.ttl - this.#lockDelay;
    const remaining = held.remaining - this.#lockDelay;
    const unused = Math.max(margin(Math.max(0, ttl)), held.margin);
    let deadline = sent + remaining - unused;
    if (this.#over !== undefined) {
      return false;
    }
    if (this.#validity !== undefined) {
      if (this.#validity.deadline <= now) {
        return false; // too late to save it
      }
      deadline = Math.max(deadline, this.#validity.deadline);
    } else if (maxHold !== undefined) {
      this.#stop = now + maxHold;
    }
    deadline = Math.min(deadline, this.#stop);
    // Not `deadline <= now`: what is no number is no deadline.
    if (!(deadline > now)) {
      return false;
    }
    if (this.#validity === undefined && atLeast !== undefined) {
      this.#leastEnd = now + atLeast;
    }
    const { token } = held;
    this.#validity = { token, ttl, deadline, margin: unused, failures: 0, trouble: undefined };
    // The lease counts from where it has its whole ttl left.
    const began = sent - (ttl - remaining);
    const renewed = autoRenew && deadline < this.#stop;
    this.due = renewed ? Math.max(began + ttl / 3, now) : Infinity;
    return true;
  }

  /** Takes the answer to a renewal that was sent at `sent`. */
  renewed(status: ClaimStatus, sent: number): void {
    switch (status.state) {
      case "held":
        this.grant(status, sent);
        break;
      case "ended":
        // With a lock delay it is left to its lease. First: what listens may release it.
        this.stays = stays(status) && this.#lockDelay === 0;
        this.lose(this.loss() ?? { reason: status.reason, broken: status.broken });
        break;
      default:
        // It held, and waits now: the backend lost what it knew.
        this.lose({ reason: "vanished" });
    }
  }

  /**
   * Whether so little is left of a grant that came late that its first use might fail. A lock that is
   * renewed is, at once: a tenth of what is trusted is enough for that, if it is time for two round
   * trips. One that is not renewed is to last for half of it.
   */
  isShort(roundTrip: number): boolean {
    const validity = this.#validity;
    if (validity === undefined || validity.deadline >= this.#stop) {
      return false;
    }
    const trusted = validity.ttl - validity.margin;
    const enough = this.#claim.request.autoRenew
      ? Math.max(trusted / 10, 2 * roundTrip)
      : trusted / 2;
    return validity.deadline - this.#clock.now() < enough;
  }

  /** Tries again soon. */
  renewalFailed(error: LockError): void {
    const validity = this.#validity;
    if (validity !== undefined && this.#over === undefined) {
      const reason = error instanceof Unavailable ? "unreachable" : "refused";
      const failures = validity.failures + 1;
      this.#validity = { ...validity, failures, trouble: { reason, detail: error.message } };
      this.due = this.#clock.now() + backoff(failures);
    }
  }

  /** Until when it is to stay held although it is released now; 0 when that is over. */
  get leftUntil(): number {
    return this.#leastEnd > this.#clock.now() ? this.#leastEnd : 0;
  }

  /** Changes how long it is to stay held, from now on. */
  setAtLeast(atLeast: number | undefined): void {
    this.#leastEnd = atLeast === undefined ? 0 : this.#clock.now() + atLeast;
  }

  /** Takes the claim for a shared one. */
  downgraded(): void {
    this.#claim = this.#claim.shared();
  }

  /** Ends a lock whose deadline has passed; says whether it did. */
  expire(): boolean {
    const loss = this.loss();
    return this.#over === undefined && loss !== undefined && this.lose(loss);
  }

  /** Marks it as lost, unless it has ended; says whether it was this call that did. */
  lose(loss: Loss): boolean {
    return this.#end({ loss });
  }

  /** Marks it as released, unless it has ended; says whether it was this call that did. */
  close(): boolean {
    return this.#end({ loss: undefined });
  }

  /** When something is to be done: a renewal, or its end. */
  nextEvent(): number {
    if (this.#over !== undefined || this.leaving) {
      return Infinity;
    }
    const deadline = this.#validity?.deadline ?? Infinity;
    return this.asking ? deadline : Math.min(this.due, deadline);
  }

  /**
   * Whether it may as well be renewed when another one is: its turn comes within half the usual
   * interval.
   */
  renewable(now: number): boolean {
    const validity = this.#validity;
    const idle = !this.isOver && !this.asking && !this.leaving;
    return validity !== undefined && idle && this.due <= now + validity.ttl / 6;
  }

  /**
   * When the backend ends the lease that is known here, lock delay included; where `maxHold` ends it,
   * only the lock delay is waited for.
   */
  leaseEnd(): number {
    const validity = this.#validity;
    if (validity === undefined) {
      return 0;
    }
    const delay = this.#lockDelay;
    if (validity.deadline >= this.#stop) {
      return delay && this.#stop + delay;
    }
    return validity.deadline + validity.margin + delay;
  }

  /**
   * Until when the claim of a lock that was lost is neither renewed nor released: its lock delay keeps
   * the name closed. 0 where there is none, and for a lock that is not lost.
   */
  closedUntil(): number {
    return this.#lockDelay > 0 && this.loss() !== undefined ? this.leaseEnd() : 0;
  }

  get #lockDelay(): number {
    return this.#claim.request.lockDelay ?? 0;
  }

  #end(over: Over): boolean {
    if (this.#over !== undefined) {
      return false;
    }
    this.#over = over;
    this.due = Infinity;
    this.#listeners.forEach((it) => it.deref()?.ended(over.loss));
    return true;
  }
}

/**
 * How long to wait after so many failures in a row: from 25 ms, doubled up to a second, of which a
 * random half is taken off so that clients do not march in step.
 */
export function backoff(failures: number): number {
  const full = Math.min(1_000, 25 * 2 ** Math.min(Math.max(failures, 1), 6));
  return full * (0.5 + Math.random() / 2);
}
