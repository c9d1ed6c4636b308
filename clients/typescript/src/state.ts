/** What is seen of locks and registers, and how it travels. No I/O. */

import { type BreakRecord, Conflict, type Holder, Stale } from "./errors.js";
import {
  type Json,
  type Mode,
  array,
  bigint,
  boolean,
  breakRecord,
  holder,
  number,
  object,
  optional,
  problem,
  text,
} from "./wire.js";

/** Locks and semaphores of one name are different things. */
export type Space = "lock" | "semaphore";

/** One claim in the queue of a lock. Durations are in milliseconds, at the moment of the look. */
export interface ClaimState {
  readonly token: bigint;
  readonly mode: Mode;
  readonly permits: number | undefined;
  readonly limit: number | undefined;
  readonly holder: Holder;
  readonly note: string | undefined;
  readonly ttl: number;
  readonly expiresIn: number;
  readonly queuedFor: number;
  /** `undefined` while it waits. */
  readonly heldFor: number | undefined;
  /** It was broken gracefully, and goes when its lease ends. */
  readonly broken: boolean;
}

/** A lock as it was when the service looked. */
export interface LockState {
  readonly name: string;
  readonly space: Space;
  /** The live claims in their order; those that hold come first. */
  readonly queue: readonly ClaimState[];
  /** The claims that hold. */
  readonly holders: readonly ClaimState[];
  /** The claims in the queue that do not hold yet. */
  readonly waiters: readonly ClaimState[];
  readonly lastBreak: BreakRecord | undefined;
}

export function lockState(answer: Json): LockState {
  const queue = array(answer["queue"]).map(claimState);
  return {
    name: text(answer["name"]),
    space: answer["space"] === "semaphore" ? "semaphore" : "lock",
    queue,
    holders: queue.filter((it) => it.heldFor !== undefined),
    waiters: queue.filter((it) => it.heldFor === undefined),
    lastBreak: optional(answer["last_break"], breakRecord),
  };
}

function claimState(it: Json): ClaimState {
  return {
    token: bigint(it["token"]),
    mode: text(it["mode"]) as Mode,
    permits: optional(it["permits"], number),
    limit: optional(it["limit"], number),
    holder: holder(object(it["holder"])),
    note: writtenNote(optional(it["note"], text)),
    ttl: number(it["ttl_ms"]),
    expiresIn: number(it["expires_in_ms"]),
    queuedFor: number(it["queued_for_ms"]),
    heldFor: optional(it["held_for_ms"], number),
    broken: boolean(it["broken"]),
  };
}

/** The note as it was given: lockkit's own marks follow a control character. */
function writtenNote(note: string | undefined): string | undefined {
  return note?.split("\u001f")[0] || undefined;
}

/** What tells two queues apart, of one claim. */
export function seen(it: ClaimState): Json {
  const { mode, permits, limit, broken } = it;
  return { token: String(it.token), mode, permits, limit, holds: it.heldFor !== undefined, broken };
}

/** Reads a page of a list, and where the next one begins. */
export function page(answer: Json): [LockState[], string | undefined] {
  return [array(answer["locks"]).map(lockState), optional(answer["next"], text)];
}

/** Reads whether there was a claim to break. */
export function wasFound(answer: Json): boolean {
  return boolean(answer["found"]);
}

/** What a register holds. */
export interface Entry {
  readonly value: Uint8Array;
  /** It only grows, across deletion too. */
  readonly version: bigint;
  /** The highest fencing token of any write. */
  readonly token: bigint | undefined;
  /** The value as text, where it is UTF-8; throws otherwise. */
  text(): string;
}

export function entry(answer: Json): Entry | undefined {
  return optional(answer["entry"], (it: unknown) => {
    const { value, version, token } = object(it);
    const bytes = valueOf(object(value));
    return {
      value: bytes,
      version: bigint(version),
      token: optional(token, bigint),
      text: () => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes),
    };
  });
}

function valueOf(value: Json): Uint8Array {
  if (value["text"] !== undefined) {
    return new TextEncoder().encode(text(value["text"]));
  }
  return Uint8Array.from(atob(text(value["base64"])), (it) => it.charCodeAt(0));
}

export function valueJson(value: Uint8Array): Json {
  let binary = "";
  for (const byte of value) {
    binary += String.fromCharCode(byte);
  }
  return { base64: btoa(binary) };
}

/** The version that was stored; throws what became of the write instead. */
export function writeOutcome(
  answer: Json,
  name: string,
  token: bigint | undefined,
  repeated: boolean,
): bigint {
  const maybeApplied = repeated || number(answer["ambiguous"] ?? 0) > 0;
  switch (answer["outcome"]) {
    case "stored":
      return bigint(answer["version"]);
    case "stale":
      throw new Stale(name, token ?? 0n, bigint(answer["highest"]), maybeApplied);
    case "conflict":
      throw new Conflict(name, maybeApplied);
    default:
      throw problem(answer);
  }
}
