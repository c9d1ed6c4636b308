/**
 * A job that many start and one does. What was decided for a key has the same bytes as the Rust library
 * writes: one byte for the encoding, two for the length of a JSON head, the head, the value.
 */

import { utf8 } from "./answers.js";
import type { Engine } from "./engine.js";
import { Conflict, type Holder, Invalid, Refused } from "./errors.js";
import { onlyLockErrors, stopped } from "./held.js";
import type { Lock } from "./lock.js";
import type { Register } from "./register.js";
import { type AcquireOptions, Source, waited } from "./source.js";
import type { Entry } from "./state.js";
import { Garbled, type Request, bigint, holder, holderJson, number, object } from "./wire.js";

const ENCODING = 1;
const HEAD = 3;
const LONGEST_VALUE = 60_000;

/** What was decided for a key, by whom and when. */
export interface Decision {
  /** What the work returned. */
  readonly value: Uint8Array;
  readonly by: Holder;
  /** Milliseconds since 1970 by the clock of the process that did it: for people. */
  readonly atUnixMs: number;
  /** The fencing token of the lock under which it was done. */
  readonly token: bigint;
  /** The value as text, where it is UTF-8; throws otherwise. */
  text(): string;
}

/** A job: it is given its lock, and returns what is decided, at most 60,000 bytes. */
export type OnceWork = (lock: Lock) => Uint8Array | string | PromiseLike<Uint8Array | string>;

/**
 * A job that many start and one does, under the lock of the same name.
 *
 * What the work returns is kept as the decision for its key, and given to all who come later. When the
 * work fails or its process dies, nothing is decided and the next in line begins: a job that died
 * between its work and its decision is done again.
 */
export class Once {
  readonly #source: Source;
  readonly #register: Register;
  readonly #keep: number;

  /** @internal */
  constructor(engine: Engine, request: Request, register: Register, keep: number) {
    this.#source = new Source(engine, request);
    this.#register = register;
    this.#keep = keep;
  }

  /**
   * Runs `work(lock)` unless it was done; while another client runs it, waits for what becomes of that.
   * What was decided, by any client. Rejects with `LockLost` when the lock was lost during the work,
   * once that has ended: nothing was decided here.
   */
  async run(work: OnceWork, options: AcquireOptions = {}): Promise<Decision> {
    const decided = await this.decision();
    return decided ?? this.#under(await waited(this.#source.take(true, [options.signal])), work);
  }

  /** As `run`, but `undefined` when another client runs it now. */
  async tryRun(work: OnceWork, options: AcquireOptions = {}): Promise<Decision | undefined> {
    const decided = await this.decision();
    if (decided !== undefined) {
      return decided;
    }
    const lock = await this.#source.attempt(options);
    // A client that ran it may have decided at this very moment.
    return lock === undefined ? this.decision() : this.#under(lock, work);
  }

  /** What was decided, if anything was. */
  async decision(): Promise<Decision | undefined> {
    const entry = await this.#register.get();
    return entry === undefined ? undefined : decoded(entry);
  }

  /** Makes it undecided: the job would run again. */
  forget(): Promise<void> {
    return this.#register.delete();
  }

  async #under(lock: Lock, work: OnceWork): Promise<Decision> {
    try {
      // The last holder may have decided.
      return (await this.decision()) ?? (await this.#decide(lock, await work(lock)));
    } catch (error) {
      throw stopped(lock, error);
    } finally {
      // What was decided is stored: a release that fails changes nothing about it.
      await lock.release().catch(onlyLockErrors);
    }
  }

  /** Decides, under the lock; what is in force: this, or an earlier decision. */
  async #decide(lock: Lock, result: Uint8Array | string): Promise<Decision> {
    const { token } = lock;
    const value = typeof result === "string" ? new TextEncoder().encode(result) : result;
    if (value.length > LONGEST_VALUE) {
      throw new Invalid(`a decision has ${LONGEST_VALUE} bytes at most, not ${value.length}`);
    }
    const by = this.#source.engine.settings.holder;
    const mine = decision(value, by, Date.now(), token);
    try {
      // Not fenced: a fence is remembered for good, and there are new keys every day. A process that
      // decides late has done the work, and the one that decided first is right.
      await this.#register.put(encoded(mine), { expect: null, ttl: this.#keep });
      return mine;
    } catch (error) {
      const earlier = error instanceof Conflict ? await this.decision() : undefined;
      if (earlier === undefined) {
        throw error;
      }
      return earlier;
    }
  }
}

function decision(value: Uint8Array, by: Holder, atUnixMs: number, token: bigint): Decision {
  return { value, by, atUnixMs, token, text: () => utf8(value) };
}

function encoded({ value, by, atUnixMs, token }: Decision): Uint8Array {
  // A token may be greater than what JavaScript's JSON keeps exactly: it is written and read as text.
  const start = JSON.stringify({ by: holderJson(by), at: atUnixMs }).slice(0, -1);
  const head = new TextEncoder().encode(`${start},"token":${token}}`);
  const bytes = new Uint8Array(HEAD + head.length + value.length);
  bytes[0] = ENCODING;
  new DataView(bytes.buffer).setUint16(1, head.length);
  bytes.set(head, HEAD);
  bytes.set(value, HEAD + head.length);
  return bytes;
}

function decoded({ value: bytes }: Entry): Decision {
  try {
    const length = bytes[0] === ENCODING ? ((bytes[1] ?? 0) << 8) | (bytes[2] ?? 0) : NaN;
    const head = utf8(bytes.slice(HEAD, HEAD + length));
    const { by, at } = object(JSON.parse(head));
    // Quotes within a text of the head have a backslash before them.
    const [, token] = /[{,]\s*"token"\s*:\s*([0-9]+)/.exec(head) ?? [];
    const value = bytes.slice(HEAD + length);
    return decision(value, holder(object(by)), number(at), bigint(token));
  } catch (error) {
    if (error instanceof Garbled || error instanceof SyntaxError || error instanceof TypeError) {
      throw new Refused("this decision was not written by this version of lockkit", "", false);
    }
    throw error;
  }
}
