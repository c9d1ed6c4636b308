/**
 * Distributed locks with fencing tokens, over a lockkit service.
 *
 * ```ts
 * import { connect } from "lockkit";
 *
 * const locks = connect("http://127.0.0.1:7411");
 * await locks.mutex("invoice/42").run(async (lock) => {
 *   await fetch("https://ledger.example/42", { method: "POST", signal: lock.signal });
 * });
 * ```
 *
 * Durations are milliseconds; tokens and versions are `bigint`.
 *
 * @module
 */

export type { Clock } from "./clock.js";
export * from "./errors.js";
export type { Held } from "./held.js";
export type { Latch } from "./latch.js";
export type { Lock, Work } from "./lock.js";
export { type BreakOptions, type Locks, type OnceOptions, connect } from "./locks.js";
export type { HeldLocks, MultiLock, MultiOptions } from "./multi.js";
export type { Decision, Once, OnceWork } from "./once.js";
export type { Election, Mutex, RwLock, Semaphore, SemaphoreOptions } from "./primitives.js";
export type { Expected, PutOptions, Register, WriteOptions } from "./register.js";
export type { ConnectOptions } from "./settings.js";
export type { Slot, Slots } from "./slots.js";
export type { AcquireOptions, LockOptions } from "./source.js";
export type { ClaimState, Entry, LockState, Mode, Space } from "./state.js";
