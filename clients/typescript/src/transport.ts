/**
 * Requests to a service: one of its servers, then the next when that one does not answer.
 *
 * A request is sent once: its caller knows whether and how to repeat it, and is told whether it may
 * have been carried out.
 */

import { LockError, Refused, Unavailable } from "./errors.js";
import type { Settings } from "./settings.js";
import { background, onAbort } from "./timers.js";
import { Trouble, troubleOf } from "./trouble.js";
import { Garbled, type Json, object, problem } from "./wire.js";

/**
 * What a proxy says by itself whose server does not answer, or has too much to do: ask again. The
 * request may have been carried out.
 */
const BY_PROXIES = [408, 429, 502, 503, 504];
/** How long a name may be unknown before that is taken for its last word, in milliseconds. */
const NAME_PATIENCE = 30_000;

/** The time for a request is over. */
class NoAnswerInTime extends Error {}

interface Server {
  readonly origin: string;
  /** Why it did not answer last; `undefined` when it did, or was not asked. */
  trouble: Trouble | undefined;
  namelessSince: number | undefined;
}

/** One request: `read` makes a result of its answer. */
export interface Ask<T> {
  readonly path: string;
  readonly body: Json;
  readonly read: (answer: Json) => T;
  /** How long it may take, in milliseconds. */
  readonly limit: number;
  /** What ends it early; the call then rejects with the signal's reason. */
  readonly signals?: readonly (AbortSignal | undefined)[];
}

export class Transport {
  readonly #servers: Server[];
  readonly #headers: () => Record<string, string>;
  readonly #fetch: typeof fetch;
  #current = 0;
  #answered = false;

  constructor(settings: Settings, send: typeof fetch = (...it) => fetch(...it)) {
    const server = (origin: string): Server => ({
      origin,
      trouble: undefined,
      namelessSince: undefined,
    });
    this.#servers = settings.servers.map(server);
    this.#headers = settings.headers;
    this.#fetch = send;
  }

  /**
   * What `read` makes of the answer. Throws the problem that the service answers with; `Unavailable`
   * when there is no answer; `Refused` when there never will be one: the same trouble lasts at all
   * servers, and none of them has ever answered. After a first answer, such trouble is a certificate
   * that is being exchanged, or one bad server behind a balancer, and passes.
   *
   * A server that cannot be reached sends the request on to the next one. One that does not answer
   * makes the *next* request go to another one: this one may have been carried out.
   */
  async ask<T>(ask: Ask<T>): Promise<T> {
    const end = performance.now() + ask.limit;
    const payload = JSON.stringify(ask.body);
    const unreached: string[] = [];
    const first = this.#current;
    for (let turn = 0; turn < this.#servers.length; turn++) {
      const at = (first + turn) % this.#servers.length;
      const server = this.#servers[at]!;
      try {
        const answer = await this.#exchange(server, ask, payload, end - performance.now());
        this.#came(at);
        return answer;
      } catch (error) {
        if (error instanceof Trouble) {
          server.trouble = this.#patient(server, error);
          if (!error.sent) {
            unreached.push(`${server.origin}: ${error.message}`);
            continue;
          }
          this.#skip(at);
          throw this.#failed(`${server.origin}: ${error.message}`, true);
        }
        if (error instanceof NoAnswerInTime) {
          server.trouble = undefined;
          this.#skip(at);
          throw new Unavailable(`${server.origin}: no answer in time`);
        }
        if (error instanceof LockError) {
          this.#came(at);
          if (error instanceof Unavailable) {
            this.#skip(at);
          }
        }
        throw error; // of the service, or the reason of a signal
      }
    }
    throw this.#failed(`no server can be reached: ${unreached.join("; ")}`, false);
  }

  async #exchange<T>(server: Server, ask: Ask<T>, payload: string, left: number): Promise<T> {
    const cut = new AbortController();
    const inTime = new NoAnswerInTime();
    const timer = background(Math.max(0, left), () => cut.abort(inTime));
    const stop = onAbort(ask.signals ?? [], (reason) => cut.abort(wrapped(reason)));
    try {
      const response = await this.#fetch(server.origin + ask.path, {
        method: "POST",
        headers: this.#headers(),
        body: payload,
        signal: cut.signal,
        // One that leads elsewhere would take the id of the claim there.
        redirect: "manual",
      });
      return await answerOf(response, ask.read);
    } catch (error) {
      if (cut.signal.aborted) {
        const { reason } = cut.signal;
        throw reason instanceof Aborted ? reason.cause : reason;
      }
      throw error instanceof Trouble || error instanceof LockError ? error : troubleOf(error);
    } finally {
      clearTimeout(timer);
      stop();
    }
  }

  #patient(server: Server, trouble: Trouble): Trouble {
    if (!trouble.nameless) {
      server.namelessSince = undefined;
      return trouble;
    }
    server.namelessSince ??= performance.now();
    const lasts = performance.now() - server.namelessSince >= NAME_PATIENCE;
    return new Trouble(trouble.message, trouble.sent, lasts, true);
  }

  #came(at: number): void {
    this.#current = at;
    this.#answered = true;
    const server = this.#servers[at]!;
    server.trouble = undefined;
    server.namelessSince = undefined;
  }

  #skip(at: number): void {
    this.#current = (at + 1) % this.#servers.length;
  }

  #failed(text: string, sent: boolean): LockError {
    const lasts = this.#servers.every((server) => server.trouble?.lasts);
    if (this.#answered || !lasts) {
      return new Unavailable(text, sent);
    }
    const said = this.#servers.map(({ origin, trouble }) => `${origin}: ${trouble?.message}`);
    return new Refused(said.join("; "), "", sent);
  }
}

/** The reason of a signal, which may be anything, on its way through `fetch`. */
class Aborted extends Error {}

function wrapped(reason: unknown): Aborted {
  return new Aborted("aborted", { cause: reason });
}

/** Throws `Trouble` for what is no answer of a lock service. */
async function answerOf<T>(response: Response, read: (answer: Json) => T): Promise<T> {
  const kind = (response.headers.get("content-type") ?? "").split(";")[0]?.trim().toLowerCase();
  if (kind !== "application/json" && kind !== "application/problem+json") {
    // Lets go of the connection.
    await response.body?.cancel().catch(() => {});
    const what = `${response.status}, and no answer of a lock service: check host and port`;
    throw new Trouble(what, true, !BY_PROXIES.includes(response.status));
  }
  const text = await response.text();
  try {
    const answer = object(JSON.parse(text));
    if (kind === "application/problem+json") {
      throw problem(answer);
    }
    return read(answer);
  } catch (error) {
    if (error instanceof Garbled || error instanceof SyntaxError) {
      const what = "an answer that no lock service of this version gives: check host and port";
      throw new Trouble(`${response.status}, and ${what}`, true, true);
    }
    throw error;
  }
}
