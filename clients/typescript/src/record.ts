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
import type { Claim, ClaimStatus, Held } from "./wire.js";

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
  #claim: Claim;
  #validity: Validity | undefined;
  #over: Over | undefined;
  #stop = Infinity;
  // Both weak: the renewer keeps this, and they lead to the lock object. What has no such object any
  // more is not renewed.
  #owner: WeakRef<object> | undefined;
  #listener: WeakRef<Listener> | undefined;
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
    this.#listener = new WeakRef(listener);
    if (this.#over !== undefined) {
      listener.ended(this.#over.loss);
    }
  }

  /** Whether a lock object refers to it. */
  get isOwned(): boolean {
    return this.#owner?.deref() !== undefined;
  }

  get isOver(): boolean {
    return this.#over !== undefined;
  }

  /** The token of a lock that is valid; throws otherwise. */
  token(): bigint {
    const loss = this.loss();
    if (loss !== undefined) {
      throw lossError(loss);
    }
    if (this.#over !== undefined || this.#validity === undefined) {
      throw new LockReleased();
    }
    return this.#validity.token;
  }

  /** How long it is valid without another renewal; 0 when it is not. */
  remaining(): number {
    if (this.#validity === undefined || this.#over !== undefined || this.loss() !== undefined) {
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
    if (validity === undefined || this.#clock.now() < validity.deadline) {
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
    const { autoRenew, maxHold } = this.#claim.request;
    const unused = Math.max(margin(held.ttl), held.margin);
    let deadline = sent + held.remaining - unused;
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
    const { token, ttl } = held;
    this.#validity = { token, ttl, deadline, margin: unused, failures: 0, trouble: undefined };
    // The lease counts from where it has its whole ttl left.
    const began = sent - (held.ttl - held.remaining);
    const renewed = autoRenew && deadline < this.#stop;
    this.due = renewed ? Math.max(began + held.ttl / 3, now) : Infinity;
    return true;
  }

  /** Takes the answer to a renewal that was sent at `sent`. */
  renewed(status: ClaimStatus, sent: number): void {
    switch (status.state) {
      case "held":
        this.grant(status, sent);
        break;
      case "ended":
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
    if (this.#over !== undefined) {
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
    return (
      validity !== undefined && !this.isOver && !this.asking && this.due <= now + validity.ttl / 6
    );
  }

  /**
   * When the backend ends the lease that is known here; where `maxHold` ends it, the lease need not
   * be waited for.
   */
  leaseEnd(): number {
    const validity = this.#validity;
    if (validity === undefined || validity.deadline >= this.#stop) {
      return 0;
    }
    return validity.deadline + validity.margin;
  }

  #end(over: Over): boolean {
    if (this.#over !== undefined) {
      return false;
    }
    this.#over = over;
    this.due = Infinity;
    this.#listener?.deref()?.ended(over.loss);
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
