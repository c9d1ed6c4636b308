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
export type { BreakOptions } from "./inspect.js";
export type { Latch } from "./latch.js";
export type { Lock, Work } from "./lock.js";
export { type Locks, connect } from "./locks.js";
export type {
  AcquireOptions,
  Election,
  LockOptions,
  Mutex,
  RwLock,
  Semaphore,
} from "./primitives.js";
export type { Expected, PutOptions, Register, WriteOptions } from "./register.js";
export type { ConnectOptions } from "./settings.js";
export type { ClaimState, Entry, LockState, Space } from "./state.js";
export type { Mode } from "./wire.js";
