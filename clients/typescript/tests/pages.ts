/** A headless browser, and a server of pages in front of the lock service, as a proxy is in production. */

import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type IncomingMessage, type ServerResponse, createServer, request } from "node:http";

const BROWSERS = ["chromium", "chromium-browser", "google-chrome"];

/** The command of a Chromium, if there is one. */
export function findBrowser(): string | undefined {
  return BROWSERS.find((it) => spawnSync(it, ["--version"]).status === 0);
}

/** The arguments for one without a window, with a profile in this folder. */
export function headless(profile: string): string[] {
  return [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    `--user-data-dir=${profile}`,
  ];
}

/** Says whether it answers a request itself. */
type Handle = (path: string, asked: IncomingMessage, reply: ServerResponse) => boolean;

/**
 * Serves a page that runs this script of the tests, and passes requests on to a service: it answers
 * pages of its own origin only.
 */
export async function servePage(script: string, port: () => number, handle: Handle = () => false) {
  const root = new URL("..", import.meta.url);
  const listener = createServer((asked, reply) => {
    const path = asked.url ?? "";
    try {
      if (path.startsWith("/v1/")) {
        pass(asked, reply, port());
      } else if (handle(path, asked, reply)) {
        return;
      } else if (path.endsWith(".js")) {
        const content = readFileSync(new URL(path.slice(1), root));
        reply.writeHead(200, { "content-type": "text/javascript" }).end(content);
      } else {
        const page = `<!doctype html><script type="module" src="/tests/${script}"></script>`;
        reply.writeHead(200, { "content-type": "text/html" }).end(page);
      }
    } catch {
      reply.destroy();
    }
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port: own } = listener.address() as { port: number };
  const close = (): void => {
    listener.close();
    listener.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${own}/`, close };
}

function pass(asked: IncomingMessage, reply: ServerResponse, port: number): void {
  const { url = "", method = "POST", headers } = asked;
  const passed = request({ host: "127.0.0.1", port, path: url, method, headers });
  asked.pipe(passed);
  reply.once("close", () => passed.destroy());
  passed.once("error", () => reply.destroy());
  passed.once("response", (answer) => {
    reply.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(reply);
  });
}
