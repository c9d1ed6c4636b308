/** Registers: small versioned values that honour tokens. When writes are repeated. */

import { entry, valueJson, writeOutcome } from "./answers.js";
import type { Engine } from "./engine.js";
import { Invalid, Unavailable } from "./errors.js";
import { poll, repeat } from "./inspect.js";
import { type Lock, engineOf, recordOf } from "./lock.js";
import { backoff } from "./record.js";
import { duration } from "./settings.js";
import type { Entry } from "./state.js";
import { sleep } from "./timers.js";
import { type Json, randomId } from "./wire.js";

/** How long a write without a lock is repeated while there is no answer, in milliseconds. */
const PATIENCE = 30_000;
const LONGEST_VALUE = 64 * 1024;
const LONGEST_TTL = 10 * 365 * 86_400_000;

/** @internal */
export const RESERVED = "lockkit.";

/** What a write expects to find: the entry that was read, its version, or no value (`null`). */
export type Expected = Entry | bigint | null;

/** The conditions of a write. */
export interface WriteOptions {
  /** Refused with `Conflict` unless this is there. Whatever is there is fine unless set. */
  readonly expect?: Expected | undefined;
  /** A lock that is held alone: refused with `Stale` once a later holder has written. */
  readonly lock?: Lock | undefined;
  /** The token of a lock elsewhere, instead of `lock`. */
  readonly token?: bigint | undefined;
}

/** What a register takes beside the value. */
export interface PutOptions extends WriteOptions {
  /** How long the value stays, in milliseconds; for good unless set. */
  readonly ttl?: number | undefined;
}

/**
 * A named value with a version and a fence.
 *
 * - `put(value, { lock })` is refused (`Stale`) once a later holder of the lock has written. Use the
 *   guards of one lock for one register.
 * - `put(value, { expect: entry })` is refused (`Conflict`) unless what was read is still there.
 *
 * A lost answer is asked for again, for half a minute at most and no longer than the lock is valid.
 * `Unavailable` after that leaves open whether it was done.
 */
export class Register {
  readonly #engine: Engine;
  readonly #name: string;

  /** @internal */
  constructor(engine: Engine, name: string) {
    this.#engine = engine;
    this.#name = name;
  }

  /** The value with its version and its fence; `undefined` when there is none. */
  get(): Promise<Entry | undefined> {
    return repeat(this.#engine, "/v1/registers/load", this.#at(), entry);
  }

  /** Stores a value, and returns its version. Text is stored as UTF-8. */
  async put(value: Uint8Array | string, options: PutOptions = {}): Promise<bigint> {
    const bytes = typeof value === "string" ? new TextEncoder().encode(value) : value;
    const { ttl } = options;
    if (bytes.length > LONGEST_VALUE) {
      throw new Invalid(`a register keeps ${LONGEST_VALUE} bytes, not ${bytes.length}`);
    }
    if (ttl !== undefined && (duration("ttl", ttl) === 0 || ttl > LONGEST_TTL)) {
      throw new Invalid("a value stays for more than 0 ms, and for 10 years at most");
    }
    const stored = { value: valueJson(bytes), ttl_ms: ttl === undefined ? ttl : Math.ceil(ttl) };
    return this.#write("/v1/registers/store", stored, options);
  }

  /** Deletes the value; that there is none is fine. The fence stays, and versions go on. */
  async delete(options: WriteOptions = {}): Promise<void> {
    await this.#write("/v1/registers/delete", {}, options);
  }

  /** Waits until what is there is not `after`, and returns it. `undefined` means no value. */
  async changed(
    after: Entry | undefined,
    { signal }: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<Entry | undefined> {
    const body = { register: this.#at(), after: after?.version.toString() };
    for (;;) {
      const now = await poll(this.#engine, "/v1/registers/changed", body, entry, signal);
      if (now?.version !== after?.version) {
        return now;
      }
    }
  }

  #at(): Json {
    return { namespace: this.#engine.settings.namespace, name: this.#name };
  }

  async #write(path: string, stored: Json, { expect, lock, token }: WriteOptions): Promise<bigint> {
    const engine = this.#engine;
    const fence = lock === undefined ? token : tokenFor(engine, lock);
    const write = { write_id: randomId(), ...precondition(expect), token: fence?.toString() };
    const until = performance.now() + PATIENCE;
    for (let failures = 0; ; ) {
      engine.checkOpen();
      const repeated = failures > 0;
      const body = { register: this.#at(), ...stored, write: { ...write, repeated } };
      const read = (answer: Json) => writeOutcome(answer, this.#name, fence, repeated);
      const limit = Math.min(timeFor(lock, until), engine.settings.timeout);
      try {
        return await engine.ask({ path, body, read, limit, signals: [engine.closing] });
      } catch (error) {
        if (!(error instanceof Unavailable)) {
          throw error;
        }
        failures += error.maybeDone || repeated ? 1 : 0;
        const pause = backoff(failures);
        if (performance.now() + pause >= until) {
          throw error;
        }
        engine.retrying(error);
        await sleep(pause, [engine.closing]);
      }
    }
  }
}

/** How long a write may take: no longer than its lock is valid. */
function timeFor(lock: Lock | undefined, until: number): number {
  let left = until - performance.now();
  if (lock !== undefined) {
    const record = recordOf(lock);
    record.token();
    left = Math.min(left, record.remaining());
  }
  return Math.max(1, left);
}

function tokenFor(engine: Engine, lock: Lock): bigint {
  const token = lock.token;
  if (lock.mode !== "exclusive") {
    throw new Invalid(
      "only a lock that is held alone fences: readers, and holders of permits, may work beside " +
        "each other whatever their tokens",
    );
  }
  if (engineOf(lock).settings.namespace !== engine.settings.namespace) {
    throw new Invalid("this lock is of another namespace than the register: tokens do not compare");
  }
  return token;
}

function precondition(expect: Expected | undefined): Json {
  if (expect === undefined) {
    return {};
  }
  if (expect === null) {
    return { absent: true };
  }
  return { version: String(typeof expect === "bigint" ? expect : expect.version) };
}
