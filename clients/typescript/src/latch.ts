/**
 * The count-down latch: closed until so many participants have counted down, then open. Its register
 * has the same bytes as the Rust library writes:
 *
 * | bytes | what |
 * | --- | --- |
 * | 1 | 1: this encoding |
 * | 4 | the generation, big-endian: 0 at first, more after each reset |
 * | 2 | the count, big-endian |
 * | 1 + n, each | the length of a participant's id, and the id; in the order of bytes |
 */

import { BelowZero, Conflict, CountMismatch, Invalid, Refused } from "./errors.js";
import { backoff } from "./record.js";
import type { Register } from "./register.js";
import type { Entry } from "./state.js";
import { sleep } from "./timers.js";
import { compared } from "./wire.js";

const ENCODING = 1;
const HEAD = 7;
const MAX_COUNT = 800;
const MAX_PARTICIPANT_BYTES = 80;

/**
 * A gate that opens when `count` participants have counted down, for those who wait and for those who
 * come later.
 *
 * - A participant counts once, however often it says so: it is known by its id.
 * - One participant more than the count is `BelowZero`; another count than that of the first use of
 *   the latch is `CountMismatch`. After a reset, the count of the reset is what counts.
 * - Nothing is held: a participant that dies after it counted has counted.
 * - It is kept in one register, for good unless given a `ttl`: at most 800 participants, with ids of
 *   1 to 80 bytes.
 */
export class Latch {
  readonly #register: Register;
  readonly #name: string;
  readonly #count: number;
  readonly #ttl: number | undefined;

  /** @internal */
  constructor(register: Register, name: string, count: number, ttl: number | undefined) {
    this.#register = register;
    this.#name = name;
    this.#count = checkedCount(count);
    this.#ttl = ttl;
  }

  /**
   * Counts down as this participant; says how many are still missing. Rejects with `Conflict` when
   * the latch was reset meanwhile: the count was for the old one.
   */
  async countDown(participant: string): Promise<number> {
    const id = checkedParticipant(participant);
    let generation: number | undefined;
    for (let conflicts = 1; ; conflicts++) {
      const loaded = await this.#register.get();
      const content = this.#read(loaded);
      generation ??= content.generation;
      if (generation !== content.generation) {
        throw new Conflict(this.#name, true);
      }
      if (content.participants.some((it) => compared(it, id) === 0)) {
        return missing(content);
      }
      if (missing(content) === 0) {
        throw new BelowZero(this.#name);
      }
      const participants = [...content.participants, id].sort(compared);
      if (await this.#stored({ ...content, participants }, loaded)) {
        return content.count - participants.length;
      }
      await sleep(backoff(conflicts));
    }
  }

  /**
   * Waits until the latch is open, or until the signal fires. While the service is out of reach, this
   * goes on trying.
   */
  async wait(options: { readonly signal?: AbortSignal | undefined } = {}): Promise<void> {
    let loaded = await this.#register.get();
    while (missing(this.#read(loaded)) > 0) {
      options.signal?.throwIfAborted();
      loaded = await this.#register.changed(loaded, options);
    }
  }

  /** How many are still missing; 0 when it is open. */
  async count(): Promise<number> {
    return missing(this.#read(await this.#register.get()));
  }

  /** Who has counted down, in the order of bytes. */
  async arrived(): Promise<string[]> {
    const { participants } = this.#read(await this.#register.get());
    return participants.map((it) => new TextDecoder().decode(it));
  }

  /**
   * Closes the latch, for everybody, until so many have counted down from now on. The count of this
   * and of every other handle is of no account any more.
   */
  async reset(count: number): Promise<void> {
    checkedCount(count);
    let first: number | undefined;
    for (;;) {
      const loaded = await this.#register.get();
      first ??= this.#content(loaded).generation;
      const generation = (first + 1) >>> 0 || 1;
      try {
        await this.#store({ generation, count, participants: [] }, loaded);
        return;
      } catch (error) {
        if (!(error instanceof Conflict)) {
          throw error;
        }
        first = undefined;
        if (error.maybeApplied) {
          // It may be this reset that was seen: to do it again would take back what was counted
          // since.
          const now = this.#content(await this.#register.get());
          if (now.generation === generation && now.count === count) {
            return;
          }
          first = now.generation;
        }
      }
      await sleep(backoff(1));
    }
  }

  /** Forgets the latch: it is closed, and new. */
  delete(): Promise<void> {
    return this.#register.delete();
  }

  async #stored(content: Content, loaded: Entry | undefined): Promise<boolean> {
    try {
      await this.#store(content, loaded);
      return true;
    } catch (error) {
      if (error instanceof Conflict) {
        return false;
      }
      throw error;
    }
  }

  #store(content: Content, loaded: Entry | undefined): Promise<bigint> {
    return this.#register.put(encoded(content), { expect: loaded ?? null, ttl: this.#ttl });
  }

  /** What is there, if this handle agrees with it. */
  #read(loaded: Entry | undefined): Content {
    const content = this.#content(loaded);
    if (content.generation === 0 && content.count !== this.#count) {
      throw new CountMismatch(this.#name, content.count, this.#count);
    }
    return content;
  }

  #content(loaded: Entry | undefined): Content {
    if (loaded === undefined) {
      return { generation: 0, count: this.#count, participants: [] };
    }
    const content = decoded(loaded.value);
    if (content === undefined) {
      const name = JSON.stringify(this.#name);
      throw new Refused(
        `the register of the latch ${name} has not been written by a latch of this version`,
        "",
        false,
      );
    }
    return content;
  }
}

/** The state of a latch. */
interface Content {
  readonly generation: number;
  readonly count: number;
  /** The ids, sorted. */
  readonly participants: readonly Uint8Array[];
}

function missing({ count, participants }: Content): number {
  return Math.max(0, count - participants.length);
}

/** @internal */
export function encoded({ generation, count, participants }: Content): Uint8Array {
  const length = participants.reduce((sum, it) => sum + 1 + it.length, HEAD);
  const bytes = new Uint8Array(length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, ENCODING);
  view.setUint32(1, generation);
  view.setUint16(5, count);
  let at = HEAD;
  for (const participant of participants) {
    bytes[at] = participant.length;
    bytes.set(participant, at + 1);
    at += 1 + participant.length;
  }
  return bytes;
}

/** @internal `undefined` when this is no latch that this version can read. */
export function decoded(bytes: Uint8Array): Content | undefined {
  if (bytes.length < HEAD || bytes[0] !== ENCODING) {
    return undefined;
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const [generation, count] = [view.getUint32(1), view.getUint16(5)];
  const participants: Uint8Array[] = [];
  for (let at = HEAD; at < bytes.length; ) {
    const end = at + 1 + bytes[at]!;
    const id = bytes.slice(at + 1, end);
    const before = participants.at(-1);
    if (end > bytes.length || (before !== undefined && compared(before, id) >= 0)) {
      return undefined;
    }
    participants.push(id);
    at = end;
  }
  const fits = count > 0 && participants.length <= count;
  return fits ? { generation, count, participants } : undefined;
}

function checkedCount(count: number): number {
  if (Number.isInteger(count) && count >= 1 && count <= MAX_COUNT) {
    return count;
  }
  throw new Invalid(`a latch counts down from 1 to ${MAX_COUNT}, not from ${count}`);
}

function checkedParticipant(participant: string): Uint8Array {
  const id = new TextEncoder().encode(participant);
  // As names: no control characters.
  if (id.length < 1 || id.length > MAX_PARTICIPANT_BYTES || /\p{Cc}/u.test(participant)) {
    throw new Invalid(
      `the id of a participant has 1 to ${MAX_PARTICIPANT_BYTES} bytes without control characters`,
    );
  }
  return id;
}
