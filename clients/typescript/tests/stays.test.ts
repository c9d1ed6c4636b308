/** Slots, and locks that stay held or closed for longer than they are used. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import {
  Invalid,
  LimitMismatch,
  LockLost,
  LockReleased,
  type Locks,
  Refused,
} from "../src/index.js";
import { Proxy } from "./proxy.js";
import { Site, fired, program, until } from "./server.js";

/** The system's clock, which a test moves ahead. */
class MovedClock {
  ahead = 0;
  now = (): number => performance.now() + this.ahead;
}

/** How long after `since` the lock is free, in milliseconds. */
async function freeAfter(locks: Locks, name: string, since: number): Promise<number> {
  await until(async () => (await locks.inspect(name)).queue.length === 0);
  return performance.now() - since;
}

test("a slot is the lowest free number, and its token grows", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [ours, theirs] = [site.connect(url), site.connect(url)];
  const slots = ours.slots("gpu", 3);
  const held = [await slots.acquire(), await slots.acquire(), await slots.acquire()];
  assert.deepEqual(held.map((it) => it.number), [0, 1, 2]);
  const [first, second, third] = held as [any, any, any];
  assert.ok(second.name === "gpu" && second.isValid && second.remaining > 20_000);
  assert.equal(await theirs.slots("gpu", 3).tryAcquire(), undefined);
  assert.equal(await theirs.slots("gpu", 3).tryAcquireFor(100), undefined);
  const { token } = second;
  await second.release();
  await second.release();
  await theirs.slots("gpu", 3).run(async (again) => {
    assert.ok(again.number === 1 && again.token > token);
    const [holder] = (await theirs.inspect("lockkit.slot/gpu/1")).holders;
    assert.equal(holder?.token, again.token);
    await theirs.register("device").put("busy", { lock: again.lock });
  });
  await Promise.all([first.release(), third.release()]);
  assert.deepEqual((await ours.inspect("gpu", "semaphore")).queue, []);
  assert.throws(() => first.token, LockReleased);
  assert.equal(String(first), 'Slot "gpu" 0, not valid');
});

test("no two of many workers hold one number", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const inside = new Set<number>();
  const worker = async (): Promise<void> => {
    const slots = site.connect(url).slots("gpu", 2);
    for (let turn = 0; turn < 5; turn++) {
      await slots.run(async ({ number }) => {
        assert.ok(!inside.has(number) && inside.size < 2, `${number} beside ${[...inside]}`);
        inside.add(number);
        await new Promise((resolve) => setTimeout(resolve, 2));
        inside.delete(number);
      });
    }
  };
  await Promise.all(Array.from({ length: 5 }, worker));
});

test("the loss of the permit, or of the slot's lock, is the slot's", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [ours, theirs] = [site.connect(url, { ttl: 900 }), site.connect(url)];
  for (const [name, space] of [["gpu", "semaphore"], ["lockkit.slot/gpu/0", "lock"]] as const) {
    const slot = await ours.slots("gpu", 2).acquire();
    const { signal } = slot;
    await assert.rejects(theirs.slots("gpu", 3).tryAcquire(), LimitMismatch);
    const [holder] = (await theirs.inspect(name, space)).holders;
    assert.ok(await theirs.breakLock(name, holder!.token, { space, force: true }));
    assert.equal(((await fired(signal)) as LockLost).reason, "broken");
    assert.ok(!slot.isValid);
    assert.throws(() => slot.token, LockLost);
    await assert.rejects(slot.release(), LockLost);
    await until(async () => (await theirs.list()).length === 0);
  }
});

test("a slot whose holder died is passed over, and a waiter gets it when its lease is over", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url);
  // What a holder leaves whose permit ended first.
  const dead = await locks.mutex("lockkit.slot/gpu/0", { ttl: 1_500, autoRenew: false }).lock();
  const slot = await locks.slots("gpu", 2).acquire();
  assert.equal(slot.number, 1);
  assert.equal(await locks.slots("gpu", 2).tryAcquire(), undefined);
  assert.equal((await locks.inspect("gpu", "semaphore")).queue.length, 1);
  const waiting = locks.slots("gpu", 2).acquire();
  assert.equal((await waiting).number, 0);
  assert.ok(!dead.isValid);
  await Promise.all([slot.release(), (await waiting).release()]);
});

test("an aborted wait for a slot leaves nothing", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const locks = site.connect(url);
  const kept = await locks.mutex("lockkit.slot/gpu/0").lock();
  const abort = new AbortController();
  const waiting = locks.slots("gpu", 1).acquire({ signal: abort.signal });
  const rejected = assert.rejects(waiting, /enough/);
  await until(async () => (await locks.inspect("gpu", "semaphore")).holders.length === 1);
  abort.abort(new Error("enough"));
  await rejected;
  await until(async () => (await locks.inspect("gpu", "semaphore")).queue.length === 0);
  await kept.release();
});

test("a token needs the names of the slots as well as that of their permits", async (t) => {
  const site = new Site(t);
  const tokens = `${site.folder}/tokens`;
  const token = (name: string, ...rights: string[]): string => {
    const may = rights.flatMap((it) => ["--may", it]);
    const words = ["serve", "token", "--quiet", "--tokens", tokens, ...may, name];
    return execFileSync(program(), words, { encoding: "utf8" }).trim();
  };
  const few = token("few", "read,lock@:gpu");
  const all = token("all", "read,lock@:gpu", "read,lock@:lockkit.slot/gpu/");
  const { url } = await site.server(undefined, "--tokens", tokens);
  const forbidden = (error: unknown) => error instanceof Refused && error.code === "forbidden";
  await assert.rejects(site.connect(url, { token: few }).slots("gpu", 2).acquire(), forbidden);
  const locks = site.connect(url, { token: all });
  await until(async () => (await locks.inspect("gpu", "semaphore")).queue.length === 0);
  assert.equal(await locks.slots("gpu", 2).run((slot) => slot.number), 0);
});

test("what cannot be slots, a least hold or a lock delay is refused", async (t) => {
  const locks = new Site(t).connect("http://127.0.0.1:7411");
  const wrong = [
    () => locks.slots("x".repeat(481), 2),
    () => locks.slots("gpu", 0),
    () => locks.slots("gpu", 1.5),
    () => locks.mutex("a", { atLeast: 5_000, maxHold: 4_000 }),
    () => locks.mutex("a", { atLeast: -1 }),
    () => locks.mutex("a", { lockDelay: NaN }),
    () => locks.mutex("a", { lockDelay: 11 * 365 * 86_400_000 }),
  ];
  wrong.forEach((it) => assert.throws(it, Invalid, String(it)));
});

test("a released lock stays for its least hold, and the release returns at once", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  const lock = await locks.mutex("a", { atLeast: 2_000 }).lock();
  const granted = performance.now();
  await lock.release();
  assert.ok(performance.now() - granted < 1_500, "the rest is left to the backend");
  assert.equal(await locks.mutex("a").tryLock(), undefined);
  assert.ok((await freeAfter(locks, "a", granted)) >= 2_000);
});

test("a lock whose lease is being shortened is not valid any more", async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const locks = site.connect(proxy.url);
  const lock = await locks.mutex("a", { atLeast: 1_000 }).lock();
  const rule = proxy.hold("/v1/shorten");
  const released = lock.release();
  // The backend ends its lease at the end of the second, whatever the answer does.
  assert.ok(!lock.isValid && lock.remaining === 0);
  assert.throws(() => lock.token, LockReleased);
  await lock.release();
  await until(() => proxy.asked("/v1/shorten").length === 1);
  await until(async () => (await locks.inspect("a")).queue.length === 0);
  rule.goOn();
  await released;
  assert.deepEqual(proxy.asked("/v1/release"), []);
});

test("a closed connection leaves it too", async (t) => {
  const site = new Site(t);
  const { url } = await site.server();
  const [locks, others] = [site.connect(url), site.connect(url)];
  const lock = await locks.mutex("a", { atLeast: 2_000 }).lock();
  const granted = performance.now();
  await locks.close();
  assert.ok(!lock.isValid && performance.now() - granted < 1_500);
  assert.ok((await freeAfter(others, "a", granted)) >= 2_000);
});

test("a process that dies leaves a lease that lasts for the least hold, and the delay", async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const locks = site.connect(proxy.url, { ttl: 1_000 });
  const lock = await locks.mutex("a", { atLeast: 60_000, lockDelay: 5_000 }).lock();
  const [asked] = proxy.asked("/v1/acquire");
  assert.equal(asked.claim.ttl_ms, 65_000);
  assert.equal(asked.claim.note, "\u001fdelay=5000");
  assert.ok(lock.remaining > 50_000);
  const [seen] = (await locks.inspect("a")).holders;
  assert.deepEqual([seen?.ttl, seen?.lockDelay, seen?.note], [60_000, 5_000, undefined]);
});

test("where the backend cannot shorten it, a lock is held until its least hold is over", async (t) => {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  proxy.answer("/v1/shorten", 501, { code: "unsupported", detail: "no" }, 9);
  const [locks, others] = [site.connect(proxy.url, { ttl: 600 }), site.connect(server.url)];
  const lock = await locks.mutex("a", { atLeast: 1_500 }).lock();
  const granted = performance.now();
  const released = lock.release();
  await until(() => proxy.asked("/v1/shorten").length === 1);
  await until(() => proxy.asked("/v1/renew").length > 1); // in time for a lease of 1,500 ms
  assert.ok(lock.isValid);
  await released;
  assert.ok(performance.now() - granted >= 1_500 && !lock.isValid);
  assert.deepEqual((await others.inspect("a")).queue, []);
  // In the background, too.
  await locks.mutex("b", { atLeast: 1_500 }).lock();
  const closed = performance.now();
  await locks.close(0);
  assert.ok((await freeAfter(others, "b", closed)) >= 1_300);
});

for (const how of ["released", "left", "closed"] as const) {
  test(`a lost lock stays closed for its lock delay: ${how}`, async (t) => {
    const site = new Site(t);
    const server = await site.server();
    const proxy = await Proxy.start(site, server);
    const clock = new MovedClock();
    const locks = site.connect(proxy.url, { ttl: 5_000, lockDelay: 3_000, clock });
    const others = site.connect(server.url);
    const lock = await locks.mutex("a", { note: "job" }).lock();
    const [shown] = (await others.inspect("a")).holders;
    assert.deepEqual([shown?.ttl, shown?.lockDelay, shown?.note], [5_000, 3_000, "job"]);
    assert.ok(lock.remaining <= 4_500, "only the ttl is trusted");
    const began = performance.now();
    clock.ahead += 4_600; // as if the process had stood still
    const asked = proxy.asked("/v1/renew").length;
    assert.ok(!lock.isValid);
    if (how === "released") {
      await assert.rejects(lock.release(), LockLost);
    } else if (how === "closed") {
      await locks.close(0);
    }
    // By this clock the lease ends 3.4 s from now.
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    assert.equal((await others.inspect("a")).holders.length, 1, "closed");
    assert.equal(proxy.asked("/v1/renew").length, asked, "not renewed");
    assert.deepEqual(proxy.asked("/v1/release"), [], "not released");
    const free = await freeAfter(others, "a", began);
    assert.ok(free >= 3_000, `${free}`);
  });
}

test("a release opens in spite of a lock delay", async (t) => {
  const site = new Site(t);
  const locks = site.connect((await site.server()).url);
  await (await locks.mutex("a", { lockDelay: 60_000 }).lock()).release();
  assert.deepEqual((await locks.inspect("a")).queue, []);
});
