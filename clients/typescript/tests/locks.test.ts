/** What every lock does, against a real server. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { inspect } from "node:util";

import {
  BelowZero,
  Closed,
  Conflict,
  CountMismatch,
  Invalid,
  LimitMismatch,
  LockLost,
  LockReleased,
  Refused,
  Stale,
} from "../src/index.js";
import { Site, fired, program, settled, until } from "./server.js";

test("a mutex excludes, and its tokens grow", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const other = site.connect((await site.server()).url);
  let first: bigint;
  {
    await using lock = await locks.mutex("a", { note: "backup" }).lock();
    first = lock.token;
    assert.equal(await other.mutex("a").tryLock(), undefined);
    assert.equal(await other.mutex("a").tryLockFor(150), undefined);
    assert.ok(lock.isValid && lock.remaining > 20_000 && lock.remaining < 27_000);
    const [seen] = (await other.inspect("a")).holders;
    assert.deepEqual([seen?.token, seen?.note, seen?.holder.pid], [first, "backup", process.pid]);
  }
  const second = await other.mutex("a").tryLock();
  assert.ok(second !== undefined && second.token > first);
  await second.release();
  await second.release();
  assert.throws(() => second.token, LockReleased);
  assert.deepEqual((await locks.inspect("a")).queue, []);
});

test("waiters come in their order", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const order: number[] = [];
  const held = await locks.mutex("a").lock();
  const waiting: Promise<void>[] = [];
  for (let turn = 0; turn < 5; turn++) {
    waiting.push(locks.mutex("a").run(() => void order.push(turn)));
    await until(async () => (await locks.inspect("a")).waiters.length === turn + 1);
  }
  await held.release();
  await Promise.all(waiting);
  assert.deepEqual(order, [0, 1, 2, 3, 4]);
});

test("run gives what the work gives, and releases also when it fails", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  assert.equal(await locks.mutex("a").run(async (lock) => lock.name + (lock.token > 0n)), "atrue");
  const failure = new Error("of the work");
  await assert.rejects(
    locks.mutex("a").run(() => Promise.reject(failure)),
    (error) => error === failure,
  );
  assert.deepEqual((await locks.inspect("a")).queue, []);
});

test("what was released or lost runs nothing", async (t) => {
  const site = new Site(t);
  let ahead = 0;
  const clock = { now: () => performance.now() + ahead };
  const locks = site.connect((await site.server()).url, { clock });
  const fail = () => assert.fail("this is not under the lock");
  const held = () =>
    Promise.all([
      locks.mutex("a").lock(),
      locks.slots("gpu", 2).acquire(),
      locks.multi(["b", "c"]).lock(),
    ]);
  for (const it of await held()) {
    assert.ok(await it.run(({ isValid }) => isValid));
    await assert.rejects(it.run(fail), LockReleased);
  }
  const lost = await held();
  ahead += 60_000;
  for (const it of lost) {
    await assert.rejects(it.run(fail), LockLost);
  }
});

test("an aborted call rejects with the reason, and leaves no claim", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const reason = { any: "thing" };
  await assert.rejects(
    locks.mutex("a").lock({ signal: AbortSignal.abort(reason) }),
    (error) => error === reason,
  );
  const held = await locks.mutex("a").lock();
  const abort = new AbortController();
  const waiting = locks.mutex("a").lock({ signal: abort.signal });
  await until(async () => (await locks.inspect("a")).waiters.length === 1);
  abort.abort(reason);
  await assert.rejects(waiting, (error) => error === reason);
  await until(async () => (await locks.inspect("a")).waiters.length === 0);
  await held.release();
});

test("readers share, a writer does not, and a downgrade lets readers in", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const config = locks.rwLock("config");
  const readers = [await config.read(), await config.read()];
  assert.equal(await config.tryWrite(), undefined);
  await Promise.all(readers.map((it) => it.release()));
  const writer = await config.write();
  assert.equal(await config.tryRead(), undefined);
  const token = writer.token;
  await writer.downgrade();
  assert.deepEqual([writer.mode, writer.token], ["shared", token]);
  const reader = await config.tryReadFor(5_000);
  assert.ok(reader?.isValid);
  await assert.rejects(reader.downgrade(), Invalid);
  await Promise.all([writer.release(), reader.release()]);
});

test("a semaphore gives its permits and no more", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const importers = locks.semaphore("importers", 3);
  const two = await importers.acquireMany(2);
  assert.equal(await importers.availablePermits(), 1);
  assert.equal(await importers.tryAcquire(2), undefined);
  const one = await importers.tryAcquire();
  assert.ok(one?.isValid);
  await assert.rejects(locks.semaphore("importers", 4).tryAcquire(), LimitMismatch);
  await assert.rejects(importers.acquireMany(4), Invalid);
  await assert.rejects(importers.acquireMany(0), Invalid);
  await Promise.all([one.release(), two.release()]);
  assert.equal(await importers.run(() => importers.availablePermits()), 2);
});

test("an election has one leader, who is seen, and observers see the next", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const here = locks.election("shard-7", "10.0.0.7:4000");
  const there = locks.election("shard-7", "10.0.0.8:4000");
  const lead = await here.campaign();
  assert.equal((await there.leader())?.note, "10.0.0.7:4000");
  assert.equal(await there.tryCampaign(), undefined);
  const observed = there.observe();
  assert.equal((await observed.next()).value.note, "10.0.0.7:4000");
  const [next, then] = [there.campaign(), observed.next()];
  await lead.release();
  assert.ok((await next).token > 0n);
  assert.equal((await then).value.note, "10.0.0.8:4000");
  await (await next).release();
});

test("a register keeps what was fenced and expected", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const cursor = locks.register("cursor");
  assert.equal(await cursor.get(), undefined);
  const older = await locks.mutex("a").lock();
  const token = older.token;
  const version = await cursor.put("event 41", { expect: null, lock: older });
  await older.release();
  const newer = await locks.mutex("a").lock();
  const changed = cursor.changed(await cursor.get());
  await cursor.put("event 42 ü", { expect: version, lock: newer });
  const entry = await changed;
  assert.deepEqual([entry?.text(), entry?.token], ["event 42 ü", newer.token]);
  await assert.rejects(cursor.put("late", { token }), Stale);
  await assert.rejects(cursor.put("late", { lock: older }), LockReleased);
  await assert.rejects(cursor.put("other", { expect: version }), Conflict);
  await cursor.put(Uint8Array.of(0, 255, 128), { lock: newer });
  assert.deepEqual([...(await cursor.get())!.value], [0, 255, 128]);
  await cursor.delete({ lock: newer });
  assert.equal(await cursor.get(), undefined);
  const reader = await locks.rwLock("b").read();
  await assert.rejects(cursor.put("x", { lock: reader }), Invalid);
});

test("a latch opens when all have counted, each once", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const boot = locks.latch("boot", 3);
  const opened = boot.wait();
  const isOpen = settled(opened);
  assert.equal(await boot.countDown("ä"), 2);
  assert.equal(await boot.countDown("ä"), 2);
  await Promise.all([boot.countDown("z"), boot.countDown("b")]);
  await opened;
  assert.ok(isOpen());
  assert.deepEqual(await boot.arrived(), ["b", "z", "ä"]);
  await assert.rejects(boot.countDown("one more"), BelowZero);
  await assert.rejects(locks.latch("boot", 4).count(), CountMismatch);
  await boot.reset(2);
  assert.equal(await locks.latch("boot", 4).count(), 2);
  await assert.rejects(boot.countDown(""), Invalid);
});

test("a broken lock tells who broke it", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const lock = await site.connect(url, { ttl: 600 }).mutex("a").lock();
  const { signal, token } = lock;
  const operator = site.connect(url, { holder: { program: "ops" } });
  assert.equal(await operator.breakLock("a", token, { reason: "it hangs" }), true);
  assert.equal(await operator.breakLock("b", token), false);
  const reason = await fired(signal);
  assert.ok(reason instanceof LockLost);
  assert.equal(reason.reason, "broken");
  assert.match(reason.message, /by ops\[\d+\]@\S+: it hangs$/);
  assert.throws(() => lock.token, LockLost);
  await assert.rejects(lock.release(), LockLost);
});

test("close gives back what is held and ends what waits", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, other] = [site.connect(url), site.connect(url)];
  const lock = await locks.mutex("a").lock();
  const { signal } = lock;
  const waiting = locks.mutex("a").lock();
  const rejected = assert.rejects(waiting, Closed);
  await until(async () => (await other.inspect("a")).waiters.length === 1);
  await locks.close();
  await rejected;
  assert.equal((signal.reason as LockLost).reason, "closed");
  assert.deepEqual((await other.inspect("a")).queue, []);
  await assert.rejects(locks.mutex("a").lock(), Closed);
});

test("names mean what they say, and namespaces keep them apart", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url);
  const names = ["a", "A", "a ", "á", "a\u0301", "a/b", "a%2Fb", "{a}", "..", "🔒"];
  const held = await Promise.all(names.map((it) => locks.mutex(it).lock()));
  assert.deepEqual(new Set((await locks.list()).map((it) => it.name)), new Set(names));
  assert.ok(await site.connect(url, { namespace: "shop" }).mutex("a").tryLock());
  await Promise.all(held.map((it) => it.release()));
  assert.throws(() => locks.mutex(""), Invalid);
  assert.throws(() => locks.mutex("ü".repeat(257)), Invalid);
  assert.throws(() => locks.mutex("\ud800"), Invalid);
  await assert.rejects(locks.mutex("a\u0001").lock(), Invalid);
});

test("settings that cannot work are refused before anything is sent", (t) => {
  const site = new Site(t);
  const wrong: [string, object?][] = [
    ["redis://localhost"],
    ["http+unix:/run/lockkit.sock"],
    ["http://a:0"],
    ["http://a,b:99999"],
    ["http://localhost?timeout=1h"],
    ["http://localhost?token=x"],
    ["http://localhost?ca=x"],
    ["http://localhost", { ttl: 30 }],
    ["http://localhost", { ttl: NaN }],
    ["http://localhost", { waitTtl: Infinity }],
    ["http://localhost", { token: "two words" }],
    ["http://locks.example", { token: "secret" }],
    ["http://user:password@localhost"],
  ];
  for (const [url, options] of wrong) {
    const refused = (error: unknown) =>
      error instanceof Invalid && !/secret|password/.test(error.message);
    assert.throws(() => site.connect(url, options), refused, url);
  }
});

test("no token and no id of a claim is in what is printed", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url, { token: "s3cret" });
  const sent: string[] = [];
  const spy: typeof fetch = (input, init) => {
    sent.push(String(init?.body));
    return fetch(input, init);
  };
  const spied = site.connect(url, { token: "s3cret", fetch: spy });
  const lock = await spied.mutex("a").lock();
  const id = JSON.parse(sent[0]!).claim.id as string;
  assert.match(id, /^[0-9a-f]{32}$/);
  const options = { depth: 20, showHidden: true };
  const printed = [lock, locks, spied, locks.mutex("a"), lock.signal].map((it) =>
    inspect(it, options),
  );
  const said = [...printed, String(lock), JSON.stringify(lock)].join("\n");
  assert.ok(!said.includes("s3cret") && !said.includes(id), said);
  assert.match(inspect(lock), /^<Lock "a" exclusive, valid>$/);
  await lock.release();
});

test("a wrong token is refused at once", async (t) => {
  const site = new Site(t);
  const tokens = `${site.folder}/tokens`;
  const words = ["serve", "token", "--quiet", "--tokens", tokens, "--may", "read,lock@", "app"];
  const token = execFileSync(program(), words, { encoding: "utf8" }).trim();
  const { url } = await site.server(undefined, "--tokens", tokens);
  const wrong = site.connect(url, { token: "wrong" });
  await assert.rejects(wrong.mutex("a").lock(), (error: unknown) => {
    return error instanceof Refused && error.code === "unauthorized" && !error.maybeDone;
  });
  const lock = await site.connect(url, { token }).mutex("a").lock();
  await lock.release();
});
