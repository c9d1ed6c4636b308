/** Servers that are killed, frozen and stopped, and answers that get lost. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:https";
import { once } from "node:events";
import { createServer as createListener } from "node:net";
import { type TestContext, test } from "node:test";

import { type Lock, LockLost, Refused, Unavailable } from "../src/index.js";
import { Proxy } from "./proxy.js";
import { Site, fired, settled, until } from "./server.js";

/** Settles once a renewal was answered, which moves the deadline; fails when the lock is lost. */
async function renewed(lock: Lock): Promise<void> {
  const deadline = () => performance.now() + lock.remaining;
  const before = deadline();
  await until(() => deadline() > before + 100 || !lock.isValid);
  assert.ok(lock.isValid);
}

async function two(t: TestContext) {
  const site = new Site(t);
  const [first, second] = [await site.server(), await site.server()];
  const both = `${first.url},${second.url.slice("http://".length)}?timeout=500ms`;
  return { site, first, second, both };
}

async function proxied(t: TestContext) {
  const site = new Site(t);
  const server = await site.server();
  return { site, server, proxy: await Proxy.start(site, server) };
}

for (const fault of ["kill", "freeze", "stop"] as const) {
  test(`a holder goes on at another server with the same token: ${fault}`, async (t) => {
    const { site, first, second, both } = await two(t);
    const lock = await site.connect(both, { ttl: 9_000 }).mutex("a").lock();
    const { token } = lock;
    await first[fault]();
    await renewed(lock);
    assert.equal(lock.token, token);
    const other = site.connect(second.url);
    assert.deepEqual((await other.inspect("a")).queue.map((it) => it.token), [token]);
    await lock.release();
    assert.deepEqual((await other.inspect("a")).queue, []);
  });

  test(`a waiter goes on at another server and keeps its place: ${fault}`, async (t) => {
    const { site, first, second, both } = await two(t);
    const holder = site.connect(second.url);
    const held = await holder.mutex("a").lock();
    const waiting = site.connect(both).mutex("a").lock();
    await until(async () => (await holder.inspect("a")).waiters.length === 1);
    const later = site.connect(second.url).mutex("a").lock();
    const isLater = settled(later);
    await until(async () => (await holder.inspect("a")).waiters.length === 2);
    await first[fault]();
    await held.release();
    const lock = await waiting;
    assert.ok(lock.isValid && !isLater());
    const { token } = lock;
    await lock.release();
    assert.ok((await later).token > token);
  });
}

test("a lock is not valid before another client gets it", async (t) => {
  const { site, first, second } = await two(t);
  const lock = await site.connect(first.url, { ttl: 3_000 }).mutex("a").lock();
  const { signal, token } = lock;
  first.freeze();
  const other = site.connect(second.url).mutex("a").lock();
  const validThen = other.then(() => lock.isValid);
  const reason = (await fired(signal)) as LockLost;
  assert.equal(reason.reason, "unreachable");
  assert.match(reason.detail, /no answer in time/);
  assert.equal(await validThen, false);
  assert.ok((await other).token > token);
  // What was under way when the server was frozen changes nothing.
  first.thaw();
  await (await other).verify();
  assert.ok(!lock.isValid && (await other).isValid);
  assert.equal(site.warnings.length, 1);
});

test("nothing is lost while the only server is replaced", async (t) => {
  const site = new Site(t);
  const first = await site.server();
  const lock = await site.connect(`${first.url}?timeout=500ms`, { ttl: 15_000 }).mutex("a").lock();
  await first.kill();
  await site.server(`127.0.0.1:${first.port}`);
  await renewed(lock);
  await lock.verify();
  await lock.release();
});

test("an acquire whose answer was lost is repeated with the same id", async (t) => {
  const { site, proxy } = await proxied(t);
  proxy.lose("/v1/acquire", 2);
  proxy.truncate("/v1/acquire");
  const locks = site.connect(proxy.url);
  const lock = await locks.mutex("a").lock();
  const ids = proxy.asked("/v1/acquire").map((it) => it.claim.id);
  assert.deepEqual([ids.length, new Set(ids).size], [4, 1]);
  assert.deepEqual((await locks.inspect("a")).queue.map((it) => it.token), [lock.token]);
  // Released again and again: one of the first requests might still arrive.
  await lock.release();
  await until(() => proxy.asked("/v1/release").length > 3);
});

test("an acquire is not repeated after its wait ttl", async (t) => {
  const { site, proxy } = await proxied(t);
  const rule = proxy.lose("/v1/acquire", 1_000_000);
  const locks = site.connect(proxy.url, { waitTtl: 200 });
  const asking = locks.mutex("a").lock();
  await until(() => new Set(proxy.asked("/v1/acquire").map((it) => it.claim.id)).size > 1);
  rule.times = 0;
  const lock = await asking;
  await until(async () => {
    const { queue } = await locks.inspect("a");
    return queue.length === 1 && queue[0]?.token === lock.token;
  });
});

for (const how of ["a timeout", "an abort"] as const) {
  test(`an acquire that arrives after ${how} and its release leaves no ghost`, async (t) => {
    const { site, proxy } = await proxied(t);
    // The first request takes longer, and must not be given up before it is sent.
    await site.connect(proxy.url).inspect("a");
    const late = proxy.delay("/v1/acquire");
    const url = how === "a timeout" ? `${proxy.url}?timeout=1s` : proxy.url;
    const locks = site.connect(url, { ttl: 3_600_000, waitTtl: 3_600_000 });
    const abort = new AbortController();
    const rejected = assert.rejects(locks.mutex("a").tryLock({ signal: abort.signal }));
    await late.reached;
    if (how === "an abort") {
      abort.abort();
    }
    await rejected;
    await until(() => proxy.asked("/v1/release").length > 0);
    late.goOn();
    await late.answered; // it holds, for nobody
    await until(async () => (await locks.inspect("a")).queue.length === 0);
  });
}

test("a release whose answer was lost is no error, and is repeated", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url);
  proxy.lose("/v1/release");
  const lock = await locks.mutex("a").lock();
  await lock.release();
  assert.equal(proxy.asked("/v1/release").length, 2);
  proxy.refuse("/v1/release", 3);
  const other = await locks.mutex("b").lock();
  await assert.rejects(other.release(), Unavailable);
  assert.ok(!other.isValid);
  await until(async () => (await locks.inspect("b")).queue.length === 0);
});

test("a release that finds nothing says so, also when an attempt was refused before", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url);
  const lock = await locks.mutex("a").lock();
  await locks.breakLock("a", lock.token, { force: true });
  proxy.answer("/v1/release", 503, { code: "unavailable", status: 503, detail: "not now" });
  await assert.rejects(lock.release(), (it) => it instanceof LockLost && it.reason === "broken");
  assert.equal(proxy.asked("/v1/release").length, 2);
});

test("a release that finds nothing says so, and who broke the lock", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url, { holder: { program: "ops" } });
  const lock = await locks.mutex("a").lock();
  await locks.breakLock("a", lock.token, { force: true, reason: "it hangs" });
  await assert.rejects(lock.release(), /was broken by ops\[\d+\]@\S+ by force: it hangs/);
  assert.ok(!lock.signal.aborted);
});

const FORBIDDEN = { code: "forbidden", status: 403, detail: "no right to this" };

test("a downgrade that may have been done and is refused gives the lock back", async (t) => {
  const { site, server, proxy } = await proxied(t);
  const lock = await site.connect(proxy.url).rwLock("a").write();
  const { signal } = lock;
  proxy.lose("/v1/downgrade");
  proxy.answer("/v1/downgrade", 403, FORBIDDEN);
  await assert.rejects(lock.downgrade(), Refused);
  assert.ok(!lock.isValid && signal.aborted);
  assert.throws(() => lock.token, LockLost);
  const others = site.connect(server.url);
  await until(async () => (await others.inspect("a")).queue.length === 0);
});

test("a downgrade that was certainly not done leaves the lock as it was", async (t) => {
  const { site, proxy } = await proxied(t);
  const lock = await site.connect(proxy.url).rwLock("a").write();
  proxy.answer("/v1/downgrade", 403, FORBIDDEN);
  await assert.rejects(lock.downgrade(), Refused);
  assert.deepEqual([lock.mode, lock.isValid], ["exclusive", true]);
  proxy.lose("/v1/downgrade");
  await lock.downgrade();
  assert.deepEqual([lock.mode, lock.isValid], ["shared", true]);
});

test("a write whose answer was lost is not done twice", async (t) => {
  const { site, proxy } = await proxied(t);
  const register = site.connect(proxy.url).register("cursor");
  const first = await register.put("41");
  proxy.lose("/v1/registers/store");
  const second = await register.put("42", { expect: first });
  const entry = await register.get();
  assert.deepEqual([entry?.text(), entry?.version], ["42", second]);
  const writes = proxy.asked("/v1/registers/store").slice(1).map((it) => it.write);
  assert.deepEqual(writes.map((it) => it.repeated), [false, true]);
  assert.equal(writes[0].write_id, writes[1].write_id);
});

test("many locks are renewed in one request, and none after the last release", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url, { ttl: 4_000 });
  const names = Array.from({ length: 100 }, (_, at) => `lock/${at}`);
  const held = await Promise.all(names.map((it) => locks.mutex(it).lock()));
  await renewed(held[0]!);
  assert.equal(proxy.asked("/v1/renew")[0].claims.length, 100);
  await Promise.all(held.map((it) => it.release()));
  const renewals = proxy.asked("/v1/renew").length;
  const last = await locks.mutex("last", { ttl: 1_500 }).lock();
  await renewed(last);
  const more = proxy.asked("/v1/renew").slice(renewals);
  assert.deepEqual(more.map((it) => it.claims.length), more.map(() => 1));
});

test("what is lost costs no other lock", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url, { ttl: 3_000 });
  const [a, b, c] = await Promise.all(["a", "b", "c"].map((it) => locks.mutex(it).lock()));
  const { signal } = b!;
  await locks.breakLock("b", b!.token, { force: true });
  assert.match(((await fired(signal)) as LockLost).reason, /broken|vanished/);
  await renewed(a!);
  assert.ok(a!.isValid && c!.isValid);
});

test("a job whose lock is lost is stopped by its signal, and run rejects", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url, { ttl: 600 });
  const server = createListener().listen(0, "127.0.0.1"); // accepts, and never answers
  await once(server, "listening");
  t.after(() => server.close());
  const { port } = server.address() as { port: number };
  const aborted = locks.mutex("a").run(async (lock) => {
    await locks.breakLock("a", lock.token);
    await fetch(`http://127.0.0.1:${port}`, { signal: lock.signal });
  });
  await assert.rejects(aborted, (it) => it instanceof LockLost && it.reason === "broken");
  // Also when the job takes no notice.
  const unaware = locks.mutex("b").run(async (lock) => {
    const gone = fired(lock.signal);
    await locks.breakLock("b", lock.token);
    await gone;
  });
  await assert.rejects(unaware, (it) => it instanceof LockLost && it.reason === "broken");
});

test("a proxy whose server is away is asked again", async (t) => {
  const { site, proxy } = await proxied(t);
  for (const status of [408, 429, 502, 503, 504]) {
    proxy.answer("/v1/acquire", status);
    const lock = await site.connect(proxy.url).mutex("a").lock();
    await lock.release();
  }
});

test("what is no lock service is refused at once", async (t) => {
  const { site, proxy } = await proxied(t);
  for (const status of [200, 301, 404, 500]) {
    proxy.answer("/v1/acquire", status);
    const asking = site.connect(proxy.url).mutex("a").lock();
    await assert.rejects(asking, (it) => {
      return it instanceof Refused && it.message.includes(`${status}, and no answer of a lock`);
    });
  }
  for (const content of [{ message: "Not Found" }, { code: 404 }, { code: "x", a: 1 }]) {
    proxy.answer("/v1/acquire", 200, content);
    await assert.rejects(site.connect(proxy.url).mutex("a").lock(), Refused);
  }
});

test("after a first answer that passes, and the place in the queue is kept", async (t) => {
  const { site, proxy } = await proxied(t);
  const locks = site.connect(proxy.url);
  const held = await locks.mutex("a").lock();
  const waiting = locks.mutex("a").lock();
  await until(() => proxy.asked("/v1/wait").length > 0);
  const [before] = (await locks.inspect("a")).waiters;
  for (let turn = 0; turn < 3; turn++) {
    proxy.answer("/v1/wait", 404);
    proxy.answer("/v1/wait", 404, { message: "Not Found" });
  }
  await until(() => proxy.asked("/v1/wait").length > 6);
  await held.release();
  assert.equal((await waiting).token, before?.token);
});

test("who speaks something else is said", async (t) => {
  const { site, server } = await proxied(t);
  const pem = readFileSync(new URL("../../../python/tests/localhost.pem", import.meta.url));
  const tls = createServer({ key: pem, cert: pem }).listen(0, "127.0.0.1");
  const greeter = createListener((it) => void it.write("SSH-2.0-greeter\r\n"));
  greeter.listen(0, "127.0.0.1");
  await Promise.all([once(tls, "listening"), once(greeter, "listening")]);
  t.after(() => [tls, greeter].map((it) => it.close()));
  const port = (it: typeof tls | typeof greeter) => (it.address() as { port: number }).port;
  const cases: [string, RegExp][] = [
    [`https://127.0.0.1:${port(tls)}`, /certificate is not trusted/],
    [server.url.replace("http:", "https:"), /does not speak TLS: use http:/],
    [`http://127.0.0.1:${port(greeter)}`, /does not speak HTTP/],
    ["http://127.0.0.1:22", /refuses this port/],
  ];
  for (const [url, expected] of cases) {
    await assert.rejects(site.connect(url).mutex("a").lock(), (it) => {
      return it instanceof Refused && expected.test(it.message);
    }, url);
  }
  const gone = createListener().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const closed = `http://127.0.0.1:${port(gone)}`;
  gone.close();
  const nobody: [string, RegExp][] = [
    [closed, /127.0.0.1:\d+: it refuses the connection/],
    [`http://${"a".repeat(63)}.invalid`, /is the name right/],
  ];
  for (const [url, expected] of nobody) {
    await assert.rejects(site.connect(url).mutex("a").tryLock(), (it) => {
      return it instanceof Unavailable && expected.test(it.message) && !it.maybeDone;
    }, url);
  }
  const both = `${closed},127.0.0.1:${port(greeter)},${server.url.slice(7)}`;
  await (await site.connect(both).mutex("a").lock()).release();
});

test("a renewal that is refused moves no deadline, and the loss says why", async (t) => {
  const { site, proxy } = await proxied(t);
  const lock = await site.connect(proxy.url, { ttl: 1_000 }).mutex("a").lock();
  const { signal } = lock;
  proxy.answer("/v1/renew", 403, FORBIDDEN, 1_000_000);
  const reason = (await fired(signal)) as LockLost;
  assert.deepEqual([reason.reason, reason.detail], ["refused", "no right to this"]);
});
