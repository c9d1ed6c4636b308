/** The errors of this package, and the reasons for which a lock is lost. No I/O. */

/** The process behind a claim, as shown to people. */
export interface Holder {
  readonly host: string;
  readonly pid: number;
  readonly program: string;
}

/** Who broke a lock, when and why. */
export interface BreakRecord {
  readonly by: Holder;
  /** Milliseconds since 1970 by the breaker's clock: for people, not for decisions. */
  readonly atUnixMs: number;
  readonly reason: string | undefined;
  /** Whether the lock moved on at once, instead of when its lease ended. */
  readonly forced: boolean;
}

/**
 * Why a lock ended without having been released.
 *
 * - `expired`: its lease ended. It was not renewed in time, or was not to be renewed; or the machine
 *   slept, or its clock was set.
 * - `maxHold`: it was held for as long as its `maxHold` allows.
 * - `broken`: another client or an operator broke it; `LockLost.broken` says who.
 * - `sessionEnded`: the backend ended its session.
 * - `unreachable`: the service or its backend did not answer until the lease ended.
 * - `refused`: the service refused to renew it until the lease ended: a token was withdrawn, for
 *   example.
 * - `vanished`: the backend does not have it any more. Data was lost or deleted, or the clock of the
 *   backend was moved.
 * - `dropped`: it was given back without a release: no object refers to it any more, or its downgrade
 *   failed when it may have been done.
 * - `closed`: its connection object was closed.
 */
export type LossReason =
  | "expired"
  | "maxHold"
  | "broken"
  | "sessionEnded"
  | "unreachable"
  | "refused"
  | "vanished"
  | "dropped"
  | "closed";

const SAID: Readonly<Record<LossReason, string>> = {
  expired: "its lease ended",
  maxHold: "it was held for as long as its maxHold allows",
  broken: "it was broken",
  sessionEnded: "the backend ended its session",
  unreachable: "the service or its backend did not answer until its lease ended",
  refused: "the service refused to renew it until its lease ended",
  vanished: "the backend does not have it any more",
  dropped: "it was given back: nothing referred to it any more, or its downgrade failed",
  closed: "its connection object was closed",
};

/** The base of all errors of this package. */
export class LockError extends Error {
  /**
   * The request may have been carried out, since one of its attempts got no answer. The package
   * cleans up behind it.
   */
  maybeDone = false;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The lock was held, or waited for, and is not any more. Leave alone what it protected. */
export class LockLost extends LockError {
  readonly reason: LossReason;
  /** Who broke it. */
  readonly broken: BreakRecord | undefined;
  /** What the last error of its renewal was. */
  readonly detail: string;

  constructor(reason: LossReason, broken?: BreakRecord, detail = "", options?: ErrorOptions) {
    let said = SAID[reason];
    if (broken !== undefined) {
      const { host, pid, program } = broken.by;
      said += ` by ${program}[${pid}]@${host}${broken.forced ? " by force" : ""}`;
      said += broken.reason ? `: ${broken.reason}` : "";
    }
    super(`the lock was lost: ${said}${detail && `: ${detail}`}`, options);
    this.reason = reason;
    this.broken = broken;
    this.detail = detail;
  }
}

/** The lock was released by this program. */
export class LockReleased extends LockError {
  constructor() {
    super("this lock was released");
  }
}

/** The semaphore is in use with another limit. Use the same limit everywhere. */
export class LimitMismatch extends LockError {
  constructor(
    detail: string,
    readonly inUse: number,
    readonly asked: number,
  ) {
    super(detail);
  }
}

/** The latch is in use with another count. Use the same count everywhere. */
export class CountMismatch extends LockError {
  constructor(
    name: string,
    readonly inUse: number,
    readonly asked: number,
  ) {
    super(`the latch ${JSON.stringify(name)} counts down from ${inUse}, not from ${asked}`);
  }
}

/** A participant counted down a latch that is open: it was not expected. */
export class BelowZero extends LockError {
  constructor(name: string) {
    super(`the latch ${JSON.stringify(name)} is open: one participant more than it counts`);
  }
}

/** A register was not as expected: another client wrote to it. */
export class Conflict extends LockError {
  constructor(
    name: string,
    /**
     * An answer was lost before this one came, so an earlier attempt of this write may have been
     * applied and overwritten since.
     */
    readonly maybeApplied: boolean,
  ) {
    const doubt = maybeApplied ? " (an earlier attempt may have been applied)" : "";
    super(`the register ${JSON.stringify(name)} was changed by another client: load it again${doubt}`);
  }
}

/** A register has been written by a later holder of the lock: stop the work. */
export class Stale extends LockError {
  constructor(
    name: string,
    readonly token: bigint,
    readonly highest: bigint,
    readonly maybeApplied: boolean,
  ) {
    const register = JSON.stringify(name);
    super(`the register ${register} has been written with token ${highest}: token ${token} is stale`);
  }
}

/** A name, duration, URL or other argument that cannot work. Nothing was done. */
export class Invalid extends LockError {}

/** The backend of this service cannot do this. */
export class Unsupported extends LockError {}

/** The service or its backend refuses until an operator does something about it. */
export class Refused extends LockError {
  constructor(
    detail: string,
    /**
     * The service's code: `unauthorized`, `forbidden`, `backend` or another one; empty where no lock
     * service answered.
     */
    readonly code = "",
    maybeDone = true,
  ) {
    super(detail);
    this.maybeDone = maybeDone;
  }
}

/** No answer: the service cannot be reached or its backend does not answer. Try again. */
export class Unavailable extends LockError {
  constructor(detail: string, maybeDone = true) {
    super(detail);
    this.maybeDone = maybeDone;
  }
}

/** The connection object was closed. */
export class Closed extends LockError {
  constructor() {
    super("these locks were closed");
  }
}
