/** The client in a page of a real browser, without a window. Skipped where there is none. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { type TestContext, test } from "node:test";

import { connect } from "../src/index.js";
import { findBrowser, headless, servePage } from "./pages.js";
import { PATIENCE, type Server, Site } from "./server.js";

const browser = findBrowser();
const skip = browser === undefined ? "skipped: there is no Chromium here" : false;

/** What a page reports: the name of each test with its error, or without one. */
type Report = Record<string, string | null>;

/** The page, and what it reports. It may freeze the service. */
async function pages(server: Server, t: TestContext) {
  let report!: (it: Report) => void;
  const reported = new Promise<Report>((resolve) => (report = resolve));
  const controls: Record<string, () => void> = {
    "/freeze": () => server.freeze(),
    "/thaw": () => server.thaw(),
  };
  const page = await servePage("page.js", () => server.port, (path, asked, reply) => {
    if (path === "/report") {
      void text(asked).then((it) => report(JSON.parse(it)));
    } else if (controls[path] === undefined) {
      return false;
    }
    controls[path]?.();
    reply.end();
    return true;
  });
  t.after(page.close);
  return { url: page.url, reported };
}

test("a page locks, runs jobs and loses locks", { skip, timeout: 2 * PATIENCE }, async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const { url, reported } = await pages(server, t);
  const words = [...headless(join(site.folder, "profile")), url];
  const child = spawn(browser!, words, { stdio: "ignore" });
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
