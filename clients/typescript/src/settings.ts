/** What the caller of `connect` says: the URL of a service, and defaults of its locks. No I/O. */

import type { Clock } from "./clock.js";
import { type Holder, Invalid } from "./errors.js";

/** What `connect` takes beside the URL. Durations are in milliseconds. */
export interface ConnectOptions {
  /** The bearer token; otherwise what the variable `LOCKKIT_HTTP_TOKEN` says, where there is one. */
  readonly token?: string;
  /** Keeps the names of one application apart from another's. */
  readonly namespace?: string;
  /** How long a lock stays held when its process dies: 30,000 unless set. */
  readonly ttl?: number;
  /** How long a waiter that died blocks those behind it: 10,000 unless set. */
  readonly waitTtl?: number;
  /** How long a lock stays closed after it was lost, and not after a release: 0 unless set. */
  readonly lockDelay?: number;
  /** Host, process id and program, as others see them of this client. */
  readonly holder?: Partial<Holder>;
  /** Is told when the service does not answer, once in 30 s; `console.warn` unless set. */
  readonly warn?: (message: string) => void;
  /** For tests. */
  readonly clock?: Clock;
  /** What sends requests: the global `fetch` unless set. */
  readonly fetch?: typeof fetch;
}

/** @internal Where the service is, and the defaults of its locks. */
export interface Settings {
  /** The origins of the servers. */
  readonly servers: readonly string[];
  readonly timeout: number;
  readonly namespace: string;
  readonly ttl: number;
  readonly waitTtl: number;
  readonly lockDelay: number;
  readonly holder: Holder;
  /** The headers of every request. A function, so that nothing that prints this shows the token. */
  readonly headers: () => Record<string, string>;
}

/** The port of a URL that names none. */
const PORT = 7411;
const TOKEN = "LOCKKIT_HTTP_TOKEN";

/** @internal Checks all that can be checked without a request. */
export function settings(url: string, options: ConnectOptions): Settings {
  const [place = "", ...query] = url.split("?");
  const [servers, secure] = serversOf(place);
  const token = checkedToken(options.token || environment(TOKEN));
  if (token && !secure && !servers.every(isHere)) {
    throw new Invalid(
      "a token travels by https:// or within this host only: over http:// to another host, " +
        "everybody between could use it",
    );
  }
  const headers = { "content-type": "application/json" };
  return {
    servers,
    timeout: timeoutOf(query.join("?")),
    namespace: options.namespace ?? "",
    ttl: checkedTtl("ttl", options.ttl ?? 30_000),
    waitTtl: checkedTtl("waitTtl", options.waitTtl ?? 10_000),
    lockDelay: duration("lockDelay", options.lockDelay ?? 0),
    holder: thisProcess(options.holder),
    headers: () => (token ? { ...headers, authorization: `Bearer ${token}` } : headers),
  };
}

/** The servers of a URL, and whether they speak TLS. */
function serversOf(place: string): [string[], boolean] {
  const [, scheme, hosts] = /^(https?):\/\/(.*?)\/?$/s.exec(place) ?? [];
  if (scheme === undefined || hosts === undefined) {
    const socket = place.startsWith("http+unix:") ? ": fetch() reaches no Unix sockets" : "";
    const kinds = "http://HOST:7411 or https://HOST:7411";
    throw new Invalid(`the URL of a lock service is ${kinds}${socket}`);
  }
  return [hosts.split(",").map((host) => `${scheme}://${authority(host)}`), scheme === "https"];
}

const HOST = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?$/;

function authority(host: string): string {
  const [, address, name, port] = HOST.exec(host) ?? [];
  const number = Number(port ?? PORT);
  if ((address ?? name) === undefined || number < 1 || number > 65_535) {
    // What has an @ may have a password before it.
    const shown = host.includes("@") ? "…@…" : host;
    throw new Invalid(
      `${JSON.stringify(shown)} is no server: use http://HOST:PORT, or several with commas`,
    );
  }
  return `${address === undefined ? name : `[${address}]`}:${number}`;
}

/** Whether what is sent to a server stays on this host. */
function isHere(server: string): boolean {
  const { hostname } = new URL(server);
  return hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
}

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000 };
const FILES = ["token_file", "ca", "cert", "key"];

function timeoutOf(query: string): number {
  let timeout = 5_000;
  for (const option of query.split("&").filter(Boolean)) {
    const [name = "", value = ""] = option.split("=");
    if (name === "token") {
      throw new Invalid("a token in a URL is seen in process lists: use the option token");
    }
    if (FILES.includes(name)) {
      throw new Invalid(
        `this client reads no files, so there is no ${name}: give the token as the option token; ` +
          "certificates are the matter of fetch() (NODE_EXTRA_CA_CERTS on Node)",
      );
    }
    if (name !== "timeout") {
      throw new Invalid(`${name} is no option of a lock service (there is: timeout)`);
    }
    const [, number, unit = ""] = /^([0-9]+)(ms|s|m)$/.exec(value) ?? [];
    timeout = Number(number) * (UNITS[unit] ?? NaN);
  }
  if (timeout >= 100 && timeout <= 60_000) {
    return timeout;
  }
  throw new Invalid("the timeout of a lock service is between 100ms and 60s");
}

function checkedToken(token: string): string {
  token = token.trim();
  if (!/^[!-~]*$/.test(token)) {
    throw new Invalid("the token of a lock service is one word of ASCII characters");
  }
  return token;
}

const SHORTEST_TTL = 100;
const LONGEST_TTL = 10 * 365 * 86_400_000;

/** @internal A duration in milliseconds that can be a lease. */
export function checkedTtl(what: string, ttl: number): number {
  if (!(ttl >= SHORTEST_TTL)) {
    throw new Invalid(
      `a ${what} of ${ttl} ms leaves nothing beside the delays of a network: durations are in ` +
        `milliseconds, and this is at least ${SHORTEST_TTL}`,
    );
  }
  if (ttl > LONGEST_TTL) {
    throw new Invalid(`a ${what} of ${ttl} ms is too long: use 10 years at most`);
  }
  return ttl;
}

/** @internal A duration in milliseconds, 0 or more. */
export function duration(what: string, value: number): number {
  if (Number.isFinite(value) && value >= 0) {
    return value;
  }
  throw new Invalid(`a ${what} of ${value} is no duration: use milliseconds, 0 or more`);
}

/**
 * How much earlier than the backend a client takes a lease of this ttl for ended: the rates of the
 * two clocks may differ by this. chrony slews a clock by up to 8.33 %.
 *
 * @internal
 */
export function margin(ttl: number): number {
  return ttl / 10 + 2;
}

interface Runtime {
  readonly process?: {
    readonly pid?: number;
    readonly argv?: readonly string[];
    readonly env?: Readonly<Record<string, string | undefined>>;
    readonly versions?: { readonly node?: string };
    getBuiltinModule?(name: "os"): { hostname(): string };
  };
  readonly Deno?: { hostname(): string; readonly pid: number; readonly mainModule: string };
  readonly location?: { readonly hostname?: string; readonly pathname?: string };
}

const runtime = globalThis as unknown as Runtime;

/** @internal Whether this is a page or a worker, which has few connections and slow timers. */
export const IN_BROWSER = runtime.process?.versions?.node === undefined && runtime.Deno === undefined;

function environment(name: string): string {
  try {
    return runtime.process?.env?.[name] ?? "";
  } catch {
    return ""; // Deno asks for a permission.
  }
}

/** Host, process id and program of this process, as texts that fit into one line. */
function thisProcess(given: Partial<Holder> = {}): Holder {
  const path = attempt(() => runtime.process?.argv?.[1]) ?? attempt(() => runtime.Deno?.mainModule);
  const program = path?.split(/[/\\]/).pop() || runtime.location?.pathname;
  const host =
    attempt(() => runtime.process?.getBuiltinModule?.("os").hostname()) ??
    attempt(() => runtime.Deno?.hostname()) ??
    runtime.location?.hostname;
  return {
    host: line(given.host ?? host ?? "unknown"),
    pid: given.pid ?? runtime.process?.pid ?? runtime.Deno?.pid ?? 0,
    program: line(given.program ?? program ?? "javascript"),
  };
}

function attempt<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined; // Deno asks for a permission.
  }
}

function line(text: string): string {
  const plain = text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "?");
  const bytes = new TextEncoder().encode(plain).slice(0, 200);
  // A character that was cut in two is left out.
  return new TextDecoder().decode(bytes).replace(/\uFFFD+$/, "") || "unknown";
}
