/**
 * The program by which the conformance suite drives this client in a page of a browser: starts one, and
 * hands lines on to the page and back by the browser's debugging protocol. See `operations.ts`.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";

import { findBrowser, headless, servePage } from "./pages.js";

/** The port of the service: that of the first server that is asked. */
let port = 0;
const folder = mkdtempSync(join(tmpdir(), "lockkit-page-"));
const page = await servePage("driver-page.js", () => port);
const words = [...headless(folder), "--remote-debugging-pipe", "about:blank"];
const browser = spawn(findBrowser() ?? "chromium", words, {
  stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
});
const ended = once(browser, "exit");
void ended.then(() => {
  // Its helpers end a little later than the browser, and write until then.
  rmSync(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  process.exit();
});
const [, , , commands, events] = browser.stdio as [null, null, null, Writable, Readable];

const answered = new Map<number, (result: any) => void>();
let last = 0;
let session: string | undefined;

/** One command of the debugging protocol: JSON, ended by a zero byte. */
function call(method: string, params: object): Promise<any> {
  const id = ++last;
  commands.write(`${JSON.stringify({ id, method, params, sessionId: session })}\0`);
  return new Promise((resolve) => answered.set(id, resolve));
}

let isReady!: () => void;
const ready = new Promise<void>((resolve) => (isReady = resolve));

function take({ id, result, method, params }: any): void {
  answered.get(id)?.(result);
  answered.delete(id);
  if (method === "Runtime.bindingCalled") {
    // The page says nothing once it is there, and then answers.
    params.payload === "" ? isReady() : console.log(params.payload);
  }
}

let text = "";
events.setEncoding("utf8").on("data", (part: string) => {
  const messages = (text + part).split("\0");
  text = messages.pop() ?? "";
  messages.forEach((it) => take(JSON.parse(it)));
});

const { targetId } = await call("Target.createTarget", { url: "about:blank" });
({ sessionId: session } = await call("Target.attachToTarget", { targetId, flatten: true }));
await call("Runtime.enable", {});
await call("Runtime.addBinding", { name: "said" });
await call("Page.navigate", { url: page.url });
await ready;

for await (const line of createInterface({ input: process.stdin })) {
  port ||= Number(/^http:\/\/[^,]*:(\d+)/.exec(JSON.parse(line).servers ?? "")?.[1] ?? 0);
  void call("Runtime.evaluate", { expression: `asked(${JSON.stringify(line)})` });
}
browser.kill("SIGKILL");
await ended;
