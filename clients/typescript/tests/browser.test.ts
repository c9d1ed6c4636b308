/** The client in a page of a real browser, without a window. Skipped where there is none. */

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { type IncomingMessage, type ServerResponse, createServer, request } from "node:http";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { type TestContext, test } from "node:test";

import { connect } from "../src/index.js";
import { PATIENCE, type Server, Site } from "./server.js";

const BROWSERS = ["chromium", "chromium-browser", "google-chrome"];
const browser = BROWSERS.find((it) => spawnSync(it, ["--version"]).status === 0);
const skip = browser === undefined ? "skipped: there is no Chromium here" : false;

/** What a page reports: the name of each test with its error, or without one. */
type Report = Record<string, string | null>;

/**
 * A server of pages in front of the lock service, as a proxy is in production: the service answers
 * pages of its own origin only.
 */
async function pages(server: Server, t: TestContext) {
  let report!: (it: Report) => void;
  const reported = new Promise<Report>((resolve) => (report = resolve));
  const root = new URL("..", import.meta.url);
  const controls: Record<string, () => void> = {
    "/freeze": () => server.freeze(),
    "/thaw": () => server.thaw(),
  };
  const handle = async (asked: IncomingMessage, reply: ServerResponse): Promise<void> => {
    const path = asked.url ?? "";
    if (path.startsWith("/v1/")) {
      pass(asked, reply, server);
    } else if (path === "/report") {
      report(JSON.parse(await text(asked)));
      reply.end();
    } else if (controls[path] !== undefined) {
      controls[path]();
      reply.end();
    } else if (path.endsWith(".js")) {
      const content = readFileSync(new URL(path.slice(1), root));
      reply.writeHead(200, { "content-type": "text/javascript" }).end(content);
    } else {
      const page = '<!doctype html><script type="module" src="/tests/page.js"></script>';
      reply.writeHead(200, { "content-type": "text/html" }).end(page);
    }
  };
  const listener = createServer((asked, reply) => {
    handle(asked, reply).catch(() => reply.destroy());
  });
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  t.after(() => {
    listener.close();
    listener.closeAllConnections();
  });
  const { port } = listener.address() as { port: number };
  return { url: `http://127.0.0.1:${port}/`, reported };
}

function pass(asked: IncomingMessage, reply: ServerResponse, server: Server): void {
  const { url = "", method = "POST", headers } = asked;
  const passed = request({ host: "127.0.0.1", port: server.port, path: url, method, headers });
  asked.pipe(passed);
  reply.once("close", () => passed.destroy());
  passed.once("error", () => reply.destroy());
  passed.once("response", (answer) => {
    reply.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(reply);
  });
}

test("a page locks, runs jobs and loses locks", { skip, timeout: 2 * PATIENCE }, async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const { url, reported } = await pages(server, t);
  const child = spawn(
    browser!,
    [
      "--headless=new",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--no-first-run",
      "--disable-background-networking",
      `--user-data-dir=${join(site.folder, "profile")}`,
      url,
    ],
    { stdio: "ignore" },
  );
  site.atEnd(async () => {
    if (child.exitCode === null) {
      child.kill("SIGKILL");
      await once(child, "exit");
    }
  });
  const ended = once(child, "exit").then(() => ({ "the browser goes on": "it ended" }));
  const report: Report = await Promise.race([reported, ended]);
  assert.ok(Object.keys(report).length >= 6, JSON.stringify(report));
  for (const [name, error] of Object.entries(report)) {
    await t.test(`in a page: ${name}`, () => assert.equal(error, null));
  }
  // A page that is gone keeps its lock for one ttl; it has released all of them.
  const { queue } = await connect(server.url).inspect("a");
  assert.deepEqual(queue, []);
});
