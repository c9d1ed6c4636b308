/**
 * What travels: JSON of the lock service. Durations are whole milliseconds; tokens, versions and ids
 * are strings there. No I/O, no clock.
 */

import {
  type BreakRecord,
  type Holder,
  Invalid,
  LimitMismatch,
  type LockError,
  LockLost,
  type LossReason,
  Refused,
  Unavailable,
  Unsupported,
} from "./errors.js";
import type { Mode } from "./state.js";

export type Json = Record<string, unknown>;

/** The longest wait of one request, in milliseconds. */
export const LONGEST_WAIT = 25_000;
/** How long to sleep between two requests where there is no connection to wait on. */
export const UNPOLLED = 1_000;

/** 128 random bits of the system: the id of a claim or of a write. */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What one operation asks for. Durations are in milliseconds. */
export interface Request {
  readonly name: string;
  readonly mode: Mode;
  readonly ttl: number;
  readonly waitTtl: number;
  readonly permits?: number | undefined;
  readonly limit?: number | undefined;
  readonly note?: string | undefined;
  readonly autoRenew: boolean;
  readonly maxHold?: number | undefined;
  readonly atLeast?: number | undefined;
  readonly lockDelay?: number | undefined;
  /** Of permits: their limit may be changed, so more of them than the limit may be asked for. */
  readonly resizable?: boolean | undefined;
}

/**
 * What a claim asks for: a process that dies leaves a lease that lasts for the least hold, and behind
 * it for the lock delay.
 */
export function lease({ ttl, atLeast = 0, lockDelay = 0 }: Request): number {
  return Math.max(ttl, atLeast) + lockDelay;
}

/** What a client puts into the queue of a lock, and sends with every request about it. */
export class Claim {
  // A secret: every client that has it can renew and release the claim.
  readonly #id: string;

  constructor(
    readonly request: Request,
    readonly namespace: string,
    readonly holder: Holder,
    id = randomId(),
  ) {
    this.#id = id;
  }

  json(): Json {
    const { name, mode, permits, limit, note, lockDelay } = this.request;
    return {
      id: this.#id,
      namespace: this.namespace,
      name,
      mode,
      permits,
      limit,
      // Of what a client asks for, never less.
      ttl_ms: Math.ceil(lease(this.request)),
      wait_ttl_ms: Math.ceil(this.request.waitTtl),
      holder: holderJson(this.holder),
      note: marked(note, lockDelay),
    };
  }

  /** The same claim once it was downgraded. */
  shared(): Claim {
    return new Claim({ ...this.request, mode: "shared" }, this.namespace, this.holder, this.#id);
  }
}

const MARK = "\u001f";
const DELAY = "delay=";

/** The note of a claim with this lock delay, which is shown with the claim and stored nowhere else. */
function marked(note: string | undefined, lockDelay = 0): string | undefined {
  return lockDelay > 0 ? `${note ?? ""}${MARK}${DELAY}${Math.ceil(lockDelay)}` : note;
}

/** The note as it was given, and the lock delay in milliseconds: lockkit's own marks follow a mark. */
export function unmarked(note: string | undefined): [string | undefined, number] {
  const [text, ...marks] = (note ?? "").split(MARK);
  const delay = marks.find((it) => it.startsWith(DELAY))?.slice(DELAY.length) ?? "";
  return [text || undefined, /^[0-9]+$/.test(delay) ? Number(delay) : 0];
}

/** Asks for a lock, which is waited for or not. */
export function acquireBody(claim: Claim, wait: boolean): Json {
  return { claim: claim.json(), no_wait: !wait, resizable: claim.request.resizable };
}

/** Asks for a lease that ends so many milliseconds from now. */
export function shortened(claim: Claim, ttl: number): Json {
  return { claim: claim.json(), ttl_ms: Math.ceil(ttl) };
}

/**
 * The claim holds. `remaining` counts from before the request was sent; `margin` of it is not to be
 * trusted.
 */
export interface Held {
  readonly state: "held";
  readonly token: bigint;
  readonly ttl: number;
  readonly remaining: number;
  readonly margin: number;
  readonly ambiguous: number;
}

/** The claim is in the queue, or could not hold at once and is not in the queue. */
export interface NotHeld {
  readonly state: "waiting" | "busy";
  readonly ambiguous: number;
}

/** The claim is not live, and never will be again. */
export interface Ended {
  readonly state: "ended";
  readonly reason: LossReason;
  readonly broken: BreakRecord | undefined;
}

export type ClaimStatus = Held | NotHeld | Ended;

/** Whether it stays in the queue until it is released, or its lease ends: after a graceful break. */
export function stays({ reason, broken }: Ended): boolean {
  return reason === "broken" && !broken?.forced;
}

/** An answer that no lock service of this version gives. */
export class Garbled extends Error {}

/** Reads the state of a claim; throws the error of one that failed by itself. */
export function claimStatus(answer: Json): ClaimStatus {
  const ambiguous = number(answer["ambiguous"] ?? 0);
  switch (answer["state"]) {
    case "held": {
      const ttl = number(answer["ttl_ms"]);
      return {
        state: "held",
        token: bigint(answer["token"]),
        ttl,
        remaining: Math.min(number(answer["remaining_ms"]), ttl),
        margin: number(answer["margin_ms"] ?? 0),
        ambiguous,
      };
    }
    case "waiting":
    case "busy":
      return { state: answer["state"], ambiguous };
    case "ended":
      return ended(answer);
    default:
      throw problem(answer);
  }
}

const REASONS: Readonly<Record<string, LossReason>> = {
  broken: "broken",
  session_ended: "sessionEnded",
};

function ended(loss: Json): Ended {
  const reason = REASONS[String(loss["reason"])] ?? "vanished";
  return { state: "ended", reason, broken: optional(loss["break"], breakRecord) };
}

/** Reads what a release found. */
export function found(answer: Json): string {
  return text(answer["found"]);
}

/** Reads the answers to many renewals. */
export function renewals(answer: Json): Json[] {
  return array(answer["answers"]);
}

/** The error that a problem (RFC 9457) of the service is. Throws `Garbled` for anything else. */
export function problem(answer: Json): LockError {
  const code = text(answer["code"]);
  const error = problemOf(code, text(answer["detail"]), answer);
  error.maybeDone = number(answer["ambiguous"] ?? 0) > 0;
  return error;
}

function problemOf(code: string, detail: string, answer: Json): LockError {
  switch (code) {
    case "ended": {
      const loss = ended(answer["loss"] === undefined ? {} : object(answer["loss"]));
      return new LockLost(loss.reason, loss.broken);
    }
    case "limit_mismatch":
      return new LimitMismatch(detail, number(answer["in_use"] ?? 0), number(answer["asked"] ?? 0));
    case "invalid":
    case "too_large":
      return new Invalid(detail);
    case "unsupported":
      return new Unsupported(detail);
    case "unavailable":
    case "too_many":
    case "too_slow":
      return new Unavailable(detail);
    default:
      return new Refused(detail, code);
  }
}

export function holderJson({ host, pid, program }: Holder): Json {
  return { host, pid, program };
}

export function holder(answer: Json): Holder {
  const { host, pid, program } = answer;
  return { host: text(host), pid: number(pid), program: text(program) };
}

export function breakRecord(answer: Json): BreakRecord {
  return {
    by: holder(object(answer["by"])),
    atUnixMs: number(answer["at_unix_ms"]),
    reason: optional(answer["reason"], text),
    forced: boolean(answer["forced"]),
  };
}

/** The order of bytes, which is not that of JavaScript's texts. */
export function compared(a: Uint8Array, b: Uint8Array): number {
  for (let at = 0; at < Math.min(a.length, b.length); at++) {
    if (a[at] !== b[at]) {
      return a[at]! - b[at]!;
    }
  }
  return a.length - b.length;
}

// Values of JSON, checked: a client that took an `undefined` for a number would trust a deadline of
// `NaN`.

/** @internal */
export function object(value: unknown): Json {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    return value as Json;
  }
  throw new Garbled();
}

/** @internal */
export function array(value: unknown): Json[] {
  if (Array.isArray(value)) {
    return value.map(object);
  }
  throw new Garbled();
}

/** @internal */
export function text(value: unknown): string {
  if (typeof value === "string") {
    return value;
  }
  throw new Garbled();
}

/** @internal */
export function number(value: unknown): number {
  if (typeof value === "number" && Number.isFinite(value) && value >= 0) {
    return value;
  }
  throw new Garbled();
}

/** @internal */
export function boolean(value: unknown): boolean {
  if (typeof value === "boolean") {
    return value;
  }
  throw new Garbled();
}

/** @internal */
export function bigint(value: unknown): bigint {
  const digits = text(value);
  if (/^[0-9]{1,20}$/.test(digits)) {
    return BigInt(digits);
  }
  throw new Garbled();
}

/** @internal */
export function optional<I, T>(value: I | undefined | null, read: (value: any) => T): T | undefined {
  return value === undefined || value === null ? undefined : read(value);
}
