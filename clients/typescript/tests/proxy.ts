/** A proxy that loses and delays answers, one that a test tells which. */

import { once } from "node:events";
import { type IncomingMessage, type ServerResponse, createServer, request } from "node:http";
import { text } from "node:stream/consumers";

import type { Server, Site } from "./server.js";

type Kind = "lose" | "refuse" | "hold" | "delay" | "answer" | "truncate";

/** What happens to some requests. */
class Rule {
  /** A request that this is about has come so far. */
  readonly reached: Promise<void>;
  /** The server has answered it. */
  readonly answered: Promise<void>;
  /** Told by the test: what is held may go on. */
  readonly goOn: () => void;
  readonly gone: Promise<void>;
  readonly reach: () => void;
  readonly answer: () => void;

  constructor(
    readonly path: string,
    public times: number,
    readonly kind: Kind,
    readonly status = 0,
    readonly content: unknown = undefined,
  ) {
    [this.reached, this.reach] = event();
    [this.answered, this.answer] = event();
    [this.gone, this.goOn] = event();
  }
}

function event(): [Promise<void>, () => void] {
  let resolve!: () => void;
  return [new Promise<void>((it) => (resolve = it)), resolve];
}

interface Answer {
  readonly status: number;
  readonly kind: string;
  readonly content: string;
}

/** Passes requests on to a server, and keeps what was asked. */
export class Proxy {
  readonly requests: { path: string; body: any; authorization: string | undefined }[] = [];
  readonly #rules: Rule[] = [];
  readonly #port: number;
  url = "";

  private constructor(port: number) {
    this.#port = port;
  }

  static async start(site: Site, server: Server): Promise<Proxy> {
    const proxy = new Proxy(server.port);
    const listener = createServer((asked, reply) => {
      // A client that left early is no trouble of the proxy.
      proxy.#handle(asked, reply).catch(() => reply.destroy());
    });
    listener.listen(0, "127.0.0.1");
    await once(listener, "listening");
    site.atEnd(() => {
      proxy.#rules.forEach((rule) => rule.goOn());
      listener.close();
      listener.closeAllConnections();
    });
    const address = listener.address();
    proxy.url = `http://127.0.0.1:${typeof address === "object" ? address?.port : ""}`;
    return proxy;
  }

  /** The server does as it is asked, and its answer gets lost. */
  lose(path: string, times = 1): Rule {
    return this.#rule(new Rule(path, times, "lose"));
  }

  /** The server does as it is asked, and half of its answer arrives. */
  truncate(path: string, times = 1): Rule {
    return this.#rule(new Rule(path, times, "truncate"));
  }

  /** The request gets lost. */
  refuse(path: string, times = 1): Rule {
    return this.#rule(new Rule(path, times, "refuse"));
  }

  /** The proxy answers by itself: with this JSON, a problem where that has a code, or in HTML. */
  answer(path: string, status: number, content?: object, times = 1): Rule {
    return this.#rule(new Rule(path, times, "answer", status, content));
  }

  /** The answer arrives when the test says so. */
  hold(path: string, times = 1): Rule {
    return this.#rule(new Rule(path, times, "hold"));
  }

  /** The request arrives when the test says so, also when its client is gone. */
  delay(path: string, times = 1): Rule {
    return this.#rule(new Rule(path, times, "delay"));
  }

  /** The bodies of requests that came for this path. */
  asked(path: string): any[] {
    return this.requests.filter((it) => it.path === path).map((it) => it.body);
  }

  #rule(rule: Rule): Rule {
    this.#rules.push(rule);
    return rule;
  }

  async #handle(asked: IncomingMessage, reply: ServerResponse): Promise<void> {
    const body = await text(asked);
    const path = asked.url ?? "";
    const { authorization } = asked.headers;
    this.requests.push({ path, body: JSON.parse(body), authorization });
    const rule = this.#rules.find((it) => it.path === path && it.times > 0);
    if (rule !== undefined) {
      rule.times -= 1;
    }
    switch (rule?.kind) {
      case "refuse":
        rule.reach();
        asked.socket.destroy();
        return;
      case "delay":
        rule.reach();
        await rule.gone;
        break;
      case "answer":
        rule.reach();
        return write(reply, answerOf(rule));
    }
    const answer = await this.#pass(path, body, authorization);
    rule?.answer();
    rule?.reach();
    switch (rule?.kind) {
      case "lose":
        asked.socket.destroy();
        return;
      case "truncate":
        reply.writeHead(answer.status, { "content-type": answer.kind, "content-length": 9_999 });
        reply.write(answer.content, () => asked.socket.destroy());
        return;
      case "hold":
        await rule.gone;
    }
    write(reply, answer);
  }

  async #pass(path: string, body: string, authorization: string | undefined): Promise<Answer> {
    const headers = { "content-type": "application/json", ...(authorization && { authorization }) };
    const passed = request({ port: this.#port, host: "127.0.0.1", path, method: "POST", headers });
    passed.end(body);
    const [answer] = (await once(passed, "response")) as [IncomingMessage];
    return {
      status: answer.statusCode ?? 0,
      kind: answer.headers["content-type"] ?? "",
      content: await text(answer),
    };
  }
}

function answerOf({ status, content }: Rule): Answer {
  if (content === undefined) {
    return { status, kind: "text/html", content: "<p>" };
  }
  const kind = "code" in (content as object) ? "application/problem+json" : "application/json";
  return { status, kind, content: JSON.stringify(content) };
}

function write(reply: ServerResponse, { status, kind, content }: Answer): void {
  reply.writeHead(status, { "content-type": kind }).end(content);
}
