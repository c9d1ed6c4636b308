/**
 * Why a request got no answer of a lock service, in words that say what to do. No I/O.
 *
 * A trouble *lasts* when it does not pass by itself: a certificate that is not trusted, another
 * protocol, another service. It is told from one that passes only here. What `fetch` says about that
 * is not standardized, and browsers say nothing: there, everything may pass and may have been sent.
 */

/** A request that got no answer. */
export class Trouble extends Error {
  constructor(
    message: string,
    /** It may have been carried out. */
    readonly sent: boolean,
    readonly lasts = false,
    /** The name of the server is not known: names of containers appear late, so this may pass. */
    readonly nameless = false,
  ) {
    super(message);
  }
}

/** Errors from before anything was sent, by what Node, Bun and Deno call them. */
const UNSENT: readonly [RegExp, string][] = [
  [/ECONNREFUSED|ConnectionRefused|[Cc]onnection refused/, "it refuses the connection"],
  [/UND_ERR_CONNECT_TIMEOUT/, "no connection in time"],
  [/EHOSTUNREACH|ENETUNREACH|ENETDOWN|EHOSTDOWN/, "there is no way to it"],
  [/EMFILE|ENFILE/, "this process has too many open files"],
];
const NAMELESS = /ENOTFOUND|EAI_NONAME|EAI_NODATA|failed to lookup address|DNSException/;
const SPEAKS_PLAIN = /ERR_SSL_WRONG_VERSION_NUMBER|ERR_SSL_PACKET_LENGTH|InvalidContentType/;
const NOT_TRUSTED =
  /CERT_|_CERT|ERR_TLS_|SELF_SIGNED|UnknownIssuer|invalid peer certificate|UNABLE_TO_/;
/** Ports of other protocols, which no page may reach: neither may `fetch` on a server. */
const BAD_PORT = /bad port|Requests to port \d+ are blocked/;
const SPEAKS_OTHER = /HPE_|HTTPParserError|Malformed_HTTP|invalid HTTP/;

/** The trouble that an error of `fetch` is. */
export function troubleOf(error: unknown): Trouble {
  const said = causes(error);
  const text = said.join(": ");
  for (const [pattern, what] of UNSENT) {
    if (pattern.test(text)) {
      return new Trouble(what, false);
    }
  }
  if (NAMELESS.test(text)) {
    return new Trouble("there is no such host: is the name right?", false, false, true);
  }
  if (BAD_PORT.test(text)) {
    return new Trouble("fetch() refuses this port: use another one", false, true);
  }
  if (SPEAKS_PLAIN.test(text)) {
    return new Trouble("it does not speak TLS: use http://", false, true);
  }
  if (NOT_TRUSTED.test(text)) {
    return new Trouble(`its certificate is not trusted (${said.at(-1)})`, false, true);
  }
  if (SPEAKS_OTHER.test(text)) {
    const what = "what answers there does not speak HTTP: check scheme, host and port";
    return new Trouble(what, true, true);
  }
  return new Trouble(said.at(-1) ?? "no answer", true);
}

/** Codes and messages of an error and of what caused it. */
function causes(error: unknown): string[] {
  const said: string[] = [];
  for (let depth = 0; depth < 4 && error instanceof Error; depth++) {
    const { code, errors } = error as Error & { code?: unknown; errors?: unknown };
    const texts = [code, error.message].filter((it): it is string => typeof it === "string");
    said.push(...texts.filter((it) => it !== ""));
    // Each address of a name that has several.
    error = Array.isArray(errors) ? errors[0] : error.cause;
  }
  return said;
}
