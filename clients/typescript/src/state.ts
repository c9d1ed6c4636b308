/** What is seen of locks and registers. */

import type { BreakRecord, Holder } from "./errors.js";

/** How a claim shares its lock. */
export type Mode = "exclusive" | "shared" | "permits";

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
  /** How long the name stays closed when its holder loses it. */
  readonly lockDelay: number;
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
