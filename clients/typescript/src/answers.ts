/** How what is seen of locks and registers travels. No I/O. */

import { Conflict, Stale } from "./errors.js";
import type { ClaimState, Entry, LockState, Mode } from "./state.js";
import {
  type Json,
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
  unmarked,
} from "./wire.js";

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
  const [note, lockDelay] = unmarked(optional(it["note"], text));
  return {
    token: bigint(it["token"]),
    mode: text(it["mode"]) as Mode,
    permits: optional(it["permits"], number),
    limit: optional(it["limit"], number),
    holder: holder(object(it["holder"])),
    note,
    ttl: Math.max(0, number(it["ttl_ms"]) - lockDelay),
    expiresIn: number(it["expires_in_ms"]),
    queuedFor: number(it["queued_for_ms"]),
    heldFor: optional(it["held_for_ms"], number),
    broken: boolean(it["broken"]),
    lockDelay,
  };
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

/** Reads the limit of a semaphore. */
export function limitOf(answer: Json): number {
  return number(answer["limit"]);
}

export function entry(answer: Json): Entry | undefined {
  return optional(answer["entry"], (it: unknown) => {
    const { value, version, token } = object(it);
    const bytes = valueOf(object(value));
    return {
      value: bytes,
      version: bigint(version),
      token: optional(token, bigint),
      text: () => utf8(bytes),
    };
  });
}

/** Reads text; throws a `TypeError` for what is none. */
export function utf8(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
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
