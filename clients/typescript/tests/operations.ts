/**
 * How the conformance suite drives this client, in any runtime: each request is a line of JSON, and so
 * is each answer. What travels over HTTP is written and read by the client: a claim, the state of one,
 * what a lock looks like, an entry, an error. The suite's side sends and gets the wire's own types, so
 * whatever this client drops or gets wrong shows there.
 *
 * `{"id": 1, "servers": "http://…", "path": "/v1/release", "body": {…}}` is answered by
 * `{"id": 1, "answer": {…}}` or by `{"id": 1, "problem": {…}}`; `{"cancel": 1}` ends a request.
 */

import {
  entry,
  limitOf,
  lockState,
  page,
  seen,
  valueJson,
  wasFound,
  writeOutcome,
} from "../src/answers.js";
import {
  type BreakRecord,
  type Holder,
  Invalid,
  LimitMismatch,
  LockError,
  LockLost,
  type LossReason,
  Refused,
  Unavailable,
  Unsupported,
  Conflict,
  Stale,
} from "../src/errors.js";
import { settings } from "../src/settings.js";
import type { Entry, Mode } from "../src/state.js";
import { Transport } from "../src/transport.js";
import {
  Claim,
  type ClaimStatus,
  type Json,
  acquireBody,
  claimStatus,
  found,
  holder,
  holderJson,
  renewals,
  shortened,
} from "../src/wire.js";

/** The clients, by their servers and the order in which these are asked. */
const transports = new Map<string, Transport>();

function transportTo(servers: string): Transport {
  const known = transports.get(servers) ?? new Transport(settings(servers, {}));
  transports.set(servers, known);
  return known;
}

interface Operation {
  /** What is sent. */
  readonly body: Json;
  /** What becomes of the answer. */
  readonly read: (answer: Json) => Json;
}

/** How each request is made of what the suite asks for, and its answer read. */
const OPERATIONS: Record<string, (body: any) => Operation> = {
  "/v1/acquire": ({ claim, no_wait, resizable }) => ({
    body: acquireBody(claimOf(claim, resizable), !no_wait),
    read: (it) => statusJson(claimStatus(it), it),
  }),
  "/v1/wait": ({ claim, wait_ms }) => ({
    body: { claim: claimOf(claim).json(), wait_ms },
    read: (it) => statusJson(claimStatus(it), it),
  }),
  "/v1/downgrade": ({ claim }) => ({
    body: { claim: claimOf(claim).json() },
    read: (it) => statusJson(claimStatus(it), it),
  }),
  "/v1/renew": ({ claims }) => ({
    body: { claims: claims.map((it: Json) => claimOf(it).json()) },
    read: (it) => ({ answers: renewals(it).map(renewalJson) }),
  }),
  "/v1/release": ({ claim }) => ({
    body: { claim: claimOf(claim).json() },
    read: (it) => ({ found: found(it) }),
  }),
  "/v1/shorten": ({ claim, ttl_ms }) => ({
    body: shortened(claimOf(claim), ttl_ms),
    read: (it) => statusJson(claimStatus(it), it),
  }),
  "/v1/resize": (body) => ({ body, read: (it) => ({ limit: limitOf(it) }) }),
  "/v1/break": (body) => ({
    body: { ...body, by: holderJson(holder(body.by)) },
    read: (it) => ({ found: wasFound(it) }),
  }),
  "/v1/inspect": (body) => ({ body, read: (it) => lockState(it) && it }),
  "/v1/list": (body) => ({ body, read: (it) => page(it) && it }),
  "/v1/changed": (body) => ({
    body,
    // A change is told by what is seen of both sides.
    read: (it) => lockState(it).queue.map(seen) && it,
  }),
  "/v1/registers/load": (body) => ({ body, read: (it) => entryJson(entry(it)) }),
  "/v1/registers/changed": (body) => ({ body, read: (it) => entryJson(entry(it)) }),
  "/v1/registers/store": (body) => ({
    body: { ...body, value: valueJson(entry({ entry: { ...body, version: "1" } })!.value) },
    read: (it) => writeJson(it, body),
  }),
  "/v1/registers/delete": (body) => ({ body, read: (it) => writeJson(it, body) }),
};

function claimOf(it: any, resizable?: boolean): Claim {
  const { name, permits, limit, note } = it;
  const request = {
    name,
    mode: it.mode as Mode,
    permits,
    limit,
    note,
    ttl: it.ttl_ms,
    waitTtl: it.wait_ttl_ms,
    autoRenew: true,
    resizable,
  };
  return new Claim(request, it.namespace ?? "", holder(it.holder), it.id);
}

/** `ahead` is for people, and this client does not read it. */
function statusJson(status: ClaimStatus, { ahead }: Json): Json {
  switch (status.state) {
    case "held": {
      const { token, ttl, remaining, margin, ambiguous } = status;
      const times = { ttl_ms: ttl, remaining_ms: remaining, margin_ms: margin };
      return { state: "held", token: String(token), ...times, ambiguous };
    }
    case "ended":
      return { state: "ended", ...endJson(status.reason, status.broken) };
    default:
      return { ...status, ahead };
  }
}

function renewalJson(answer: Json): Json {
  try {
    return statusJson(claimStatus(answer), answer);
  } catch (error) {
    return problemJson(error);
  }
}

function endJson(reason: LossReason, broken: BreakRecord | undefined): Json {
  const reasons: Partial<Record<LossReason, string>> = {
    broken: "broken",
    sessionEnded: "session_ended",
  };
  return { reason: reasons[reason] ?? "not_found", break: broken && breakJson(broken) };
}

function breakJson({ by, atUnixMs, reason, forced }: BreakRecord): Json {
  return { by: by as Holder, at_unix_ms: atUnixMs, reason, forced };
}

function entryJson(it: Entry | undefined): Json {
  if (it === undefined) {
    return { entry: null };
  }
  const { value, version, token } = it;
  return { entry: { value: valueJson(value), version: String(version), token: token?.toString() } };
}

function writeJson(answer: Json, { register, write }: any): Json {
  const token = write.token === undefined ? undefined : BigInt(write.token);
  const { ambiguous } = answer;
  try {
    const version = writeOutcome(answer, register.name, token, write.repeated);
    return { outcome: "stored", version: String(version), ambiguous };
  } catch (error) {
    if (error instanceof Stale) {
      return { outcome: "stale", highest: String(error.highest), ambiguous };
    }
    if (error instanceof Conflict) {
      return { outcome: "conflict", ambiguous };
    }
    throw error;
  }
}

function problemJson(error: unknown): Json {
  if (!(error instanceof LockError)) {
    throw error;
  }
  const { message: detail } = error;
  const problem = { status: 500, detail, ambiguous: error.maybeDone ? 1 : 0 };
  if (error instanceof LockLost) {
    return { ...problem, code: "ended", loss: endJson(error.reason, error.broken) };
  }
  if (error instanceof LimitMismatch) {
    const { inUse: in_use, asked } = error;
    return { ...problem, code: "limit_mismatch", in_use, asked };
  }
  if (error instanceof Refused) {
    return { ...problem, code: error.code || "backend" };
  }
  const codes = [
    [Invalid, "invalid"],
    [Unsupported, "unsupported"],
    [Unavailable, "unavailable"],
  ] as const;
  return { ...problem, code: codes.find(([kind]) => error instanceof kind)?.[1] };
}

const running = new Map<number, AbortController>();

/** Carries out what a line asks for, and says the answer. */
export function ask(line: string, say: (answer: string) => void): void {
  const asked = JSON.parse(line);
  if (asked.cancel === undefined) {
    void carryOut(asked, say);
  } else {
    running.get(asked.cancel)?.abort();
  }
}

async function carryOut(
  { id, servers, path, body }: any,
  say: (answer: string) => void,
): Promise<void> {
  const stop = new AbortController();
  running.set(id, stop);
  try {
    const operation = OPERATIONS[path]!(body);
    const limit = 5_000 + Number(body.wait_ms ?? 0);
    const answer = await transportTo(servers).ask({ path, ...operation, limit, signals: [stop.signal] });
    say(JSON.stringify({ id, answer }));
  } catch (error) {
    if (!stop.signal.aborted) {
      say(JSON.stringify({ id, problem: problemJson(error) }));
    }
  } finally {
    running.delete(id);
  }
}
