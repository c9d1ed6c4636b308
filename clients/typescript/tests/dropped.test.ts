/** Lock objects that nothing refers to any more, and programs that end. Needs `--expose-gc`. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";

import type { Locks, LockLost } from "../src/index.js";
import { Proxy } from "./proxy.js";
import { Site, until } from "./server.js";

const collect = (globalThis as { gc?: () => void }).gc;
assert.ok(collect, "run this with --expose-gc");

async function collected(holds: () => boolean | Promise<boolean>): Promise<void> {
  await until(() => {
    collect?.();
    return holds();
  });
}

async function isFree(locks: Locks, name: string): Promise<boolean> {
  return (await locks.inspect(name)).queue.length === 0;
}

const LONG = { ttl: 3_600_000, waitTtl: 3_600_000 };

test("a lock object that is dropped is released, whatever listens to its signal", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url, LONG);
  await (async () => {
    const lock = await locks.mutex("a").lock();
    lock.signal.addEventListener("abort", () => console.log(lock.name));
  })();
  await collected(() => isFree(locks, "a"));
});

test("a result that nobody receives leaves no lock", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url, LONG);
  await locks.mutex("a").lock().then(() => undefined);
  await collected(() => isFree(locks, "a"));
});

test("a slot, or several locks, that are dropped are released", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url, LONG);
  const held = [locks.slots("gpu", 2, LONG).acquire(), locks.multi(["a", "b"]).lock()];
  const signals = await Promise.all(held.map((it) => it.then(({ signal }) => signal)));
  held.length = 0;
  await collected(() => signals.every((it) => it.aborted));
  await collected(async () => (await locks.list()).length === 0);
});

test("a signal does not keep the lock, and fires when the lock object was dropped", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url, LONG);
  const signal = await locks.mutex("a").lock().then((it) => it.signal);
  await collected(() => signal.aborted);
  assert.equal((signal.reason as LockLost).reason, "dropped");
  await until(() => isFree(locks, "a"));
});

test("a lock object that is referred to is kept and renewed", async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const locks = site.connect(proxy.url, { ttl: 600 });
  const kept = await locks.mutex("a").lock();
  await collected(() => proxy.asked("/v1/renew").length > 5);
  assert.ok(kept.isValid);
  await kept.release();
});

test("where no finalizer runs, the renewer notices, and renews nothing", async (t) => {
  // A process of its own, whose registry never calls.
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const url = JSON.stringify(proxy.url);
  const program = run(`
    globalThis.FinalizationRegistry = class { register() {} unregister() {} };
    const { connect } = await import(${library()});
    const locks = connect(${url}, { ttl: 900 });
    await locks.mutex("a").lock().then(() => undefined);
    const alive = setInterval(gc, 20);
    process.once("message", () => clearInterval(alive));
  `);
  const locks = site.connect(server.url);
  await until(() => proxy.asked("/v1/release").length > 0);
  assert.deepEqual(proxy.asked("/v1/renew"), []);
  // The release was asked for, and may not be done yet.
  await until(() => isFree(locks, "a"));
  program.kill();
});

test("a program with a lock and nothing else to do ends", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const program = run(`
    const { connect } = await import(${library()});
    globalThis.lock = await connect(${JSON.stringify(url)}).mutex("a").lock();
    console.log("token", String(lock.token));
  `);
  const [code] = await once(program, "exit");
  assert.equal(code, 0);
  // It costs the ttl: nothing has released it.
  assert.equal((await site.connect(url).inspect("a")).queue.length, 1);
});

for (const [how, code] of [
  ["whose first release is not answered", `globalThis.lock = await locks.mutex("a").lock();`],
  [
    "that lost a lock with a lock delay",
    `const lock = await locks.mutex("a", { ttl: 300, autoRenew: false, lockDelay: 300 }).lock();
     await new Promise((resolve) => setTimeout(resolve, lock.remaining + 1));
     await lock.release().catch(() => {});`,
  ],
] as const) {
  test(`a program ${how} does not end before its locks are closed`, async (t) => {
    const site = new Site(t);
    const server = await site.server();
    const proxy = await Proxy.start(site, server);
    proxy.refuse("/v1/release");
    const program = run(`
      const { connect } = await import(${library()});
      const locks = connect(${JSON.stringify(proxy.url)}, { warn: () => {} });
      ${code}
      await locks.close(60_000);
      process.exitCode = 7; // it came so far
    `);
    const [ended] = await once(program, "exit");
    assert.equal(ended, 7);
    assert.equal(proxy.asked("/v1/release").length, 2);
    assert.ok(await isFree(site.connect(server.url), "a"));
  });
}

test("a program that waits for a lock, or for the service, does not end", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url);
  const held = await locks.mutex("a").lock();
  const program = run(`
    const { connect } = await import(${library()});
    const locks = connect(${JSON.stringify(url)});
    await locks.mutex("a").run(() => {});
  `);
  await until(async () => (await locks.inspect("a")).waiters.length === 1);
  await held.release();
  const [code] = await once(program, "exit");
  assert.equal(code, 0);
  assert.ok(await isFree(locks, "a"));
  // Nothing listens at this port any more: it waits until it is killed.
  const gone = createServer().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const { port } = gone.address() as { port: number };
  gone.close();
  const waiting = run(`
    const { connect } = await import(${library()});
    const warn = () => process.send("warned");
    await connect("http://127.0.0.1:${port}", { warn }).mutex("a").lock();
  `);
  await once(waiting, "message");
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(waiting.exitCode, null);
  waiting.kill();
});

function library(): string {
  return JSON.stringify(new URL("../src/index.js", import.meta.url).href);
}

function run(code: string) {
  const words = ["--expose-gc", "--input-type=module", "--eval", code];
  return spawn(process.execPath, words, { stdio: ["ignore", "inherit", "inherit", "ipc"] });
}
