/** Several locks as one, jobs that are done once, and limits that change. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { entry, valueJson } from "../src/answers.js";
import { Invalid, LimitMismatch, LockLost, Refused } from "../src/index.js";
import { randomId } from "../src/wire.js";
import { Proxy } from "./proxy.js";
import { Site, fired, settled, until } from "./server.js";

test("a multi-lock has all or none, in the order of bytes, and each name once", async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const [locks, others] = [site.connect(proxy.url), site.connect(server.url)];
  const names = ["z", "ä", "B", "z", "🔒", "\uffff"];
  const held = await locks.multi(names, { note: "move" }).lock();
  assert.deepEqual(held.locks.map((it) => it.name), names);
  assert.equal(held.tokens[0], held.tokens[3]);
  assert.ok(held.isValid && held.remaining > 20_000);
  assert.equal(String(held), 'Locks "z", "ä", "B", "z", "🔒", "\uffff", valid');
  const asked = proxy.asked("/v1/acquire").map((it) => it.claim.name);
  assert.deepEqual(asked, ["B", "z", "ä", "\uffff", "🔒"], "bytes, not code units");
  assert.equal(await others.mutex("ä").tryLock(), undefined);
  assert.equal((await others.inspect("ä")).holders[0]?.note, "move");
  await held.release();
  await held.release();
  assert.deepEqual(await others.list(), []);
  assert.throws(() => locks.multi([]), Invalid);
  assert.throws(() => locks.multi(["a", ""]), Invalid);
});

test("a multi-lock that is busy leaves nothing", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url), site.connect(url)];
  const busy = await others.mutex("b").lock();
  assert.equal(await locks.multi(["c", "b", "a"]).tryLock(), undefined);
  assert.deepEqual((await others.list()).map((it) => it.name), ["b"]);
  assert.equal(await locks.multi(["c", "b", "a"]).tryLockFor(200), undefined);
  await until(async () => (await others.list()).length === 1);
  const abort = new AbortController();
  const waiting = locks.multi(["c", "b", "a"]).lock({ signal: abort.signal });
  const rejected = assert.rejects(waiting, /enough/);
  await until(async () => (await others.inspect("b")).waiters.length === 1);
  // It holds what comes before, and nothing behind.
  assert.equal((await others.inspect("a")).holders.length, 1);
  assert.equal((await others.inspect("c")).queue.length, 0);
  abort.abort(new Error("enough"));
  await rejected;
  await until(async () => (await others.list()).length === 1);
  await busy.release();
});

test("multi-locks that cross never block each other", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  let [inside, done] = [0, 0];
  const worker = async (names: string[]): Promise<void> => {
    const locks = site.connect(url);
    for (let turn = 0; turn < 8; turn++) {
      await locks.multi(names).run(async () => {
        assert.equal(++inside, 1);
        await new Promise((resolve) => setTimeout(resolve, 1));
        inside -= 1;
        done += 1;
      });
    }
  };
  await Promise.all([worker(["a", "b", "c"]), worker(["c", "b", "a"]), worker(["b", "c", "a"])]);
  assert.equal(done, 24);
});

test("the loss of one lock is that of all", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url, { ttl: 900 }), site.connect(url)];
  const failure = await locks
    .multi(["a", "b"])
    .run(async (held) => {
      await others.breakLock("b", held.tokens[1]!, { force: true, reason: "a test" });
      assert.equal(((await fired(held.signal)) as LockLost).reason, "broken");
      assert.ok(!held.isValid);
      assert.throws(() => held.tokens, LockLost);
      throw new DOMException("stopped", "AbortError");
    })
    .catch((error: unknown) => error);
  assert.ok(failure instanceof LockLost && /a test/.test(failure.message), `${failure}`);
  await until(async () => (await others.list()).length === 0);
});

test("a lock that is lost while the next one is waited for is taken again", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url, { ttl: 900 }), site.connect(url)];
  const busy = await others.mutex("b").lock();
  const waiting = locks.multi(["a", "b"]).lock();
  const isDone = settled(waiting);
  await until(async () => (await others.inspect("b")).waiters.length === 1);
  const [first] = (await others.inspect("a")).holders;
  await others.breakLock("a", first!.token, { force: true });
  await until(async () => ((await others.inspect("a")).holders[0]?.token ?? 0n) > first!.token);
  assert.ok(!isDone());
  await busy.release();
  const held = await waiting;
  assert.ok(held.isValid && held.tokens[0]! > first!.token);
  await held.release();
});

test("a job is done once, and what it gave is kept for those who come later", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url), site.connect(url, { holder: { program: "other" } })];
  let runs = 0;
  const job = async (): Promise<string> => {
    runs += 1;
    await new Promise((resolve) => setTimeout(resolve, 50));
    return "42 pages, ü";
  };
  const all = [locks, others, locks].map((it) => it.once("2026-11-21/report").run(job));
  const decisions = await Promise.all(all);
  assert.equal(runs, 1);
  for (const { value, token, by, atUnixMs, text } of decisions) {
    assert.deepEqual([token, by, atUnixMs], [decisions[0]!.token, decisions[0]!.by, decisions[0]!.atUnixMs]);
    assert.equal(new TextDecoder().decode(value), "42 pages, ü");
    assert.equal(text(), "42 pages, ü");
  }
  const report = others.once("2026-11-21/report");
  assert.equal((await report.tryRun(job))?.text(), "42 pages, ü");
  assert.ok(Math.abs((await report.decision())!.atUnixMs - Date.now()) < 60_000);
  await report.forget();
  assert.equal(await report.decision(), undefined);
  const bytes = await report.run(() => Uint8Array.of(0, 255));
  assert.deepEqual([...bytes.value], [0, 255]);
  assert.equal(bytes.by.program, "other");
});

test("while one does it, a try says so, and a failure decides nothing", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const report = locks.once("report");
  let fail!: (error: Error) => void;
  const failing = report.run(() => new Promise((_, reject) => (fail = reject)));
  const rejected = assert.rejects(failing, /of the work/);
  await until(() => fail !== undefined);
  assert.equal(await report.tryRun(() => "second"), undefined);
  fail(new Error("of the work"));
  await rejected;
  assert.equal(await report.decision(), undefined);
  await assert.rejects(report.run(() => "x".repeat(60_001)), Invalid);
  assert.equal((await report.run(() => "second")).text(), "second");
  assert.throws(() => locks.once("report", { keep: 0 }), Invalid);
});

test("a job whose lock was lost decides nothing", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url, { ttl: 900 }), site.connect(url)];
  const report = locks.once("report");
  const lost = report.run(async (lock) => {
    await others.breakLock("report", lock.token, { force: true });
    await fired(lock.signal);
    return "late";
  });
  await assert.rejects(lost, LockLost);
  assert.equal(await report.decision(), undefined);
});

test("decisions are read byte for byte as Rust and Python write them", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url);
  const decision = await locks.once("job").run(() => "value");
  const register = { namespace: "", name: "lockkit.once/job" };
  const { value } = entry(await ask(url, "/v1/registers/load", register))!;
  const length = (value[1]! << 8) | value[2]!;
  assert.equal(value[0], 1);
  const head = new TextDecoder().decode(value.slice(3, 3 + length));
  const { by, at } = JSON.parse(head);
  assert.deepEqual(by, decision.by);
  assert.equal(at, decision.atUnixMs);
  assert.ok(head.endsWith(`,"token":${decision.token}}`));
  assert.equal(new TextDecoder().decode(value.slice(3 + length)), "value");
  // A token that JavaScript's numbers do not keep, and a program that looks like one.
  const program = 'a,"token":5';
  const written = { by: { host: "h", pid: 7, program }, at: 9 };
  const other = `${JSON.stringify(written).slice(0, -1)}, "token": 18446744073709551615}`;
  const store = (content: Uint8Array): Promise<any> => {
    const body = { register, value: valueJson(content), write: { write_id: randomId() } };
    return ask(url, "/v1/registers/store", body);
  };
  assert.equal((await store(bytes(1, other, "v"))).outcome, "stored");
  const read = await locks.once("job").decision();
  assert.deepEqual([read?.token, read?.by.program, read?.text()], [2n ** 64n - 1n, program, "v"]);
  for (const bad of [bytes(2, other, "v"), bytes(1, "{", "v"), Uint8Array.of(), Uint8Array.of(1)]) {
    assert.equal((await store(bad)).outcome, "stored");
    await assert.rejects(locks.once("job").decision(), Refused);
  }
});

function bytes(encoding: number, head: string, value: string): Uint8Array {
  const text = new TextEncoder().encode(head);
  const end = new TextEncoder().encode(value);
  return Uint8Array.of(encoding, text.length >> 8, text.length & 255, ...text, ...end);
}

/** A request of the lock service, as it is on the wire. */
async function ask(url: string, path: string, body: object): Promise<any> {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  return answer.json();
}

test("a resizable semaphore follows its limit everywhere", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url), site.connect(url)];
  const pool = locks.semaphore("pool", 2, { resizable: true });
  const both = await pool.acquireMany(2);
  const theirs = others.semaphore("pool", 7, { resizable: true });
  assert.equal(await theirs.limit(), 2);
  assert.equal(await theirs.tryAcquire(), undefined);
  const waiting = theirs.acquireMany(3);
  const isDone = settled(waiting);
  await until(async () => (await others.inspect("pool", "semaphore")).waiters.length === 1);
  await locks.resize("pool", 0);
  assert.ok(both.isValid, "a holder stays");
  await both.release();
  assert.equal(await pool.tryAcquire(), undefined, "drained");
  assert.ok(!isDone());
  await others.resize("pool", 4);
  const three = await waiting;
  assert.equal(await pool.availablePermits(), 1);
  const one = await pool.tryAcquireFor(5_000);
  assert.ok(one?.isValid);
  await assert.rejects(locks.semaphore("pool", 2).tryAcquire(), LimitMismatch);
  await Promise.all([three.release(), one.release()]);
  for (const limit of [-1, 1.5, 2 ** 32]) {
    await assert.rejects(locks.resize("pool", limit), Invalid);
  }
});

test("the number of resizable slots can be changed", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const slots = locks.slots("gpu", 1, { resizable: true });
  const first = await slots.acquire();
  assert.equal(await slots.tryAcquire(), undefined);
  await locks.resize("gpu", 2);
  const second = await slots.acquire();
  assert.deepEqual([first.number, second.number], [0, 1]);
  await Promise.all([first.release(), second.release()]);
});
