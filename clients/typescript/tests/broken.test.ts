/** A graceful break: the claim stays in the queue until its holder gives it back, or its lease ends. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import { type Lock, LockLost } from "../src/index.js";
import { Proxy } from "./proxy.js";
import { Site, fired, until } from "./server.js";

const HOUR = 3_600_000;

async function proxied(t: TestContext) {
  const site = new Site(t);
  const server = await site.server();
  return { site, proxy: await Proxy.start(site, server), others: site.connect(server.url) };
}

/** A lock with a ttl of an hour that was broken without force, and has noticed. */
async function broken(t: TestContext, lost: number, lockDelay = 0) {
  const { site, proxy, others } = await proxied(t);
  proxy.lose("/v1/acquire", lost);
  let ahead = 0;
  const clock = { now: () => performance.now() + ahead };
  const locks = site.connect(proxy.url, { ttl: HOUR, waitTtl: HOUR, lockDelay, clock });
  const held: Lock[] = [await locks.mutex("a").lock()];
  const { signal, token } = held[0]!;
  assert.ok(await others.breakLock("a", token));
  ahead += 0.4 * HOUR; // a renewal is due
  assert.equal(((await fired(signal)) as LockLost).reason, "broken");
  // It excludes others for as long as its holder may not have noticed.
  for (let turn = 0; turn < 3; turn++) {
    const [holder] = (await locks.inspect("a")).holders;
    assert.ok(holder?.broken);
  }
  assert.deepEqual(proxy.asked("/v1/release"), []);
  return { proxy, others, locks, held };
}

type Broken = Awaited<ReturnType<typeof broken>>;

const WAYS: Record<string, (it: Broken) => Promise<unknown> | void> = {
  released: async ({ held: [lock] }) => {
    await assert.rejects(lock!.release(), LockLost);
    await assert.rejects(lock!.release(), LockLost);
  },
  dropped: ({ held }) => void held.pop(),
  closed: ({ locks }) => locks.close(),
};

for (const [how, end] of Object.entries(WAYS)) {
  test(`a lock that was broken is given back when its holder is done: ${how}`, async (t) => {
    const it = await broken(t, 0);
    await end(it);
    await until(async () => {
      (globalThis as { gc?: () => void }).gc?.();
      return (await it.others.inspect("a")).queue.length === 0;
    });
    await it.locks.close();
    assert.equal(it.proxy.asked("/v1/release").length, 1);
  });

  for (const lost of [0, 1]) {
    test(`one with a lock delay is left to its lease: ${how}, ${lost} answers lost`, async (t) => {
      const it = await broken(t, lost, 1_000);
      await end(it);
      await it.locks.close(0);
      assert.deepEqual(it.proxy.asked("/v1/release"), []);
      assert.equal((await it.others.inspect("a")).queue.length, 1);
    });
  }
}

test("one whose acquire had no answer excludes others until its holder is done", async (t) => {
  const { proxy, others, held } = await broken(t, 1);
  await assert.rejects(held[0]!.verify(), LockLost);
  assert.deepEqual(proxy.asked("/v1/release"), []);
  await assert.rejects(held[0]!.release(), LockLost);
  // Again and again: the acquire might still arrive.
  await until(() => proxy.asked("/v1/release").length > 2);
  assert.deepEqual((await others.inspect("a")).queue, []);
});

test("a release that learns of the break gives the lock back", async (t) => {
  const { site, proxy, others } = await proxied(t);
  const lock = await site.connect(proxy.url, { ttl: HOUR }).mutex("a", { atLeast: HOUR }).lock();
  await others.breakLock("a", lock.token);
  await assert.rejects(lock.release(), (it) => it instanceof LockLost && it.reason === "broken");
  await until(async () => (await others.inspect("a")).queue.length === 0);
});

test("a waiter that was broken leaves the queue", async (t) => {
  const { site, proxy, others } = await proxied(t);
  const held = await others.mutex("a").lock();
  const rejected = assert.rejects(
    site.connect(proxy.url, { waitTtl: HOUR }).mutex("a").lock(),
    LockLost,
  );
  await until(async () => (await others.inspect("a")).waiters.length === 1);
  await others.breakLock("a", (await others.inspect("a")).waiters[0]!.token);
  await rejected;
  await until(async () => (await others.inspect("a")).waiters.length === 0);
  await held.release();
});
