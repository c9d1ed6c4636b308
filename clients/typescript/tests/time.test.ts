/** The rules of time: every way to a deadline has a case in which the answer comes late. */

import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";

import { AgreeingClock } from "../src/clock.js";
import { type Locks, LockLost, Unavailable } from "../src/index.js";
import { Record } from "../src/record.js";
import { Claim, type Held, claimStatus } from "../src/wire.js";
import { Proxy } from "./proxy.js";
import { Site, fired, settled, until } from "./server.js";

const TTL = 30_000;
const MARGIN = TTL / 10 + 2; // a clock may be slewed by 8.33 %

/** The system's clock, which a test moves ahead. */
class MovedClock {
  ahead = 0;
  now = (): number => performance.now() + this.ahead;
}

class SetClock {
  time = 1_000_000;
  now = (): number => this.time;
}

async function late(t: TestContext) {
  const site = new Site(t);
  const server = await site.server();
  const proxy = await Proxy.start(site, server);
  const clock = new MovedClock();
  const locks = site.connect(proxy.url, { ttl: TTL, clock });
  return { site, proxy, clock, locks, other: site.connect(server.url) };
}

type Rule = ReturnType<Proxy["hold"]>;

/** So much time passes between the server's answer and its arrival. */
async function arrives(rule: Rule, clock: MovedClock, after: number): Promise<void> {
  await rule.reached;
  clock.ahead += after;
  rule.goOn();
}

async function queue(locks: Locks, name = "a"): Promise<bigint[]> {
  return (await locks.inspect(name)).queue.map((it) => it.token);
}

const FOR_EVER = 1_000_000;

test("a grant counts from before its request was sent", async (t) => {
  const { proxy, clock, locks } = await late(t);
  proxy.refuse("/v1/renew", FOR_EVER); // a renewal is due at once
  const rule = proxy.hold("/v1/acquire");
  const asking = locks.mutex("a").lock();
  await arrives(rule, clock, 8_000);
  const { remaining } = await asking;
  assert.ok(remaining > 0 && remaining <= TTL - 8_000 - MARGIN, `${remaining}`);
});

test("a grant after waiting counts from before the last poll", async (t) => {
  const { proxy, clock, locks, other } = await late(t);
  const held = await other.mutex("a").lock();
  proxy.refuse("/v1/renew", FOR_EVER);
  const rule = proxy.hold("/v1/wait");
  const asking = locks.mutex("a").lock();
  await until(() => proxy.asked("/v1/wait").length > 0);
  await held.release();
  await arrives(rule, clock, 20_000);
  const { remaining } = await asking;
  assert.ok(remaining > 0 && remaining <= TTL - 20_000 - MARGIN, `${remaining}`);
});

test("a grant that comes after its lease is never a lock", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const rule = proxy.hold("/v1/acquire");
  const asking = locks.mutex("a").lock();
  await arrives(rule, clock, TTL);
  const lock = await asking;
  const [first, second] = proxy.asked("/v1/acquire").map((it) => it.claim.id);
  assert.notEqual(first, second);
  assert.ok(lock.isValid);
  assert.equal(proxy.asked("/v1/release")[0].claim.id, first);
  assert.deepEqual(await queue(locks), [lock.token]);
});

test("a renewal counts from before it was sent", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const lock = await locks.mutex("a").lock();
  const rule = proxy.hold("/v1/renew");
  proxy.refuse("/v1/renew", FOR_EVER); // the next one is due at once
  clock.ahead += 0.4 * TTL;
  const left = lock.remaining;
  await arrives(rule, clock, 12_000);
  await until(() => lock.remaining > left - 12_000 + 1_000);
  assert.ok(lock.remaining <= TTL - 12_000 - MARGIN, `${lock.remaining}`);
});

test("a renewal whose answer comes after the deadline revives nothing", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const lock = await locks.mutex("a").lock();
  const { signal } = lock;
  const rule = proxy.hold("/v1/renew");
  clock.ahead += 0.4 * TTL;
  await arrives(rule, clock, 20_000);
  assert.ok(!lock.isValid);
  assert.throws(() => lock.token, LockLost);
  assert.ok((await fired(signal)) instanceof LockLost);
  assert.ok(!lock.isValid);
});

for (const path of ["/v1/verify", "/v1/downgrade"] as const) {
  test(`${path} renews, and counts from before it was sent`, async (t) => {
    const { proxy, clock, locks } = await late(t);
    const lock = await locks.rwLock("a").write();
    proxy.refuse("/v1/renew", FOR_EVER);
    clock.ahead += 0.2 * TTL;
    const rule = proxy.hold(path);
    const asking = path === "/v1/verify" ? lock.verify() : lock.downgrade();
    await arrives(rule, clock, 15_000);
    await asking;
    // Without it there would be 0.8 * 30 - 15 s left.
    const { remaining } = lock;
    assert.ok(remaining > 9_500 && remaining <= TTL - 15_000 - MARGIN, `${remaining}`);
  });
}

test("a process that was suspended sees the loss when it wakes, before any timer", async (t) => {
  const { clock, locks } = await late(t);
  const lock = await locks.mutex("a").lock();
  const { signal } = lock;
  clock.ahead += TTL - MARGIN;
  assert.ok(!lock.isValid);
  assert.throws(() => lock.token, /its lease ended/);
  assert.ok(lock.signal.aborted && signal.aborted);
  assert.equal((signal.reason as LockLost).reason, "expired");
});

test("a suspended laptop wakes to a lost lock", async (t) => {
  const site = new Site(t);
  let slept = 0;
  // Suspended, the wall clock goes on and the monotonic one stands still.
  const clock = new AgreeingClock(
    () => performance.now(),
    () => Date.now() + slept,
  );
  const locks = site.connect((await site.server()).url, { clock });
  const lock = await locks.mutex("a").lock();
  const { signal } = lock;
  slept += 5_000; // less than the ttl: it cannot be told from a clock that was set
  assert.ok(!lock.isValid);
  assert.ok((await fired(signal)) instanceof LockLost);
  await using next = await locks.mutex("b").lock();
  assert.ok(next.isValid);
});

test("a lock that is not renewed ends with its lease", async (t) => {
  const { proxy, locks } = await late(t);
  const lock = await locks.mutex("a", { ttl: 1_000, autoRenew: false }).lock();
  assert.equal(((await fired(lock.signal)) as LockLost).reason, "expired");
  assert.deepEqual(proxy.asked("/v1/renew"), []);
  await assert.rejects(lock.release(), LockLost);
});

test("a holder that hangs is lost after maxHold and given back", async (t) => {
  const { locks } = await late(t);
  const lock = await locks.mutex("a", { ttl: 3_600_000, maxHold: 300 }).lock();
  assert.ok(lock.remaining <= 300);
  assert.equal(((await fired(lock.signal)) as LockLost).reason, "maxHold");
  await until(async () => (await queue(locks)).length === 0);
});

test("a grant of which little is left is renewed before it is a lock", async (t) => {
  const { proxy, clock, locks, other } = await late(t);
  const rule = proxy.hold("/v1/acquire");
  const asking = locks.mutex("a").lock();
  await arrives(rule, clock, TTL - MARGIN - 500);
  const lock = await asking;
  assert.ok(lock.remaining > TTL / 2);
  assert.equal(proxy.asked("/v1/acquire").length, 1);
  assert.deepEqual(proxy.asked("/v1/release"), []);
  // So is one that a waiter learns of late.
  const held = await other.mutex("b").lock();
  const poll = proxy.hold("/v1/wait");
  const waiting = locks.mutex("b").lock();
  await until(() => proxy.asked("/v1/wait").length > 0);
  await held.release();
  await arrives(poll, clock, TTL - MARGIN - 500);
  assert.ok((await waiting).remaining > TTL / 2);
});

test("a waiter keeps a grant whose poll was sent more than its ttl ago", async (t) => {
  const { proxy, clock, locks, other } = await late(t);
  const held = await other.mutex("a").lock();
  const rule = proxy.hold("/v1/wait");
  const asking = locks.mutex("a").lock();
  await until(() => proxy.asked("/v1/wait").length > 0);
  const [, waiter] = await queue(other);
  await held.release();
  await arrives(rule, clock, TTL); // the grant, which is new, ends it
  const lock = await asking;
  assert.equal(lock.token, waiter);
  assert.ok(lock.remaining > TTL / 2);
  assert.equal(proxy.asked("/v1/acquire").length, 1);
  assert.deepEqual(proxy.asked("/v1/release"), []);
});

test("what such a waiter asks for then counts from its own request, once", async (t) => {
  const { proxy, clock, locks, other } = await late(t);
  const held = await other.mutex("a").lock();
  const polls = [proxy.hold("/v1/wait"), proxy.hold("/v1/wait")];
  const asking = locks.mutex("a").lock();
  await until(() => proxy.asked("/v1/wait").length > 0);
  await held.release();
  for (const poll of polls) {
    await Promise.race([poll.reached, asking]);
    assert.equal(proxy.asked("/v1/acquire").length, 1);
    await arrives(poll, clock, TTL);
  }
  assert.ok((await asking).isValid);
  const claims = proxy.asked("/v1/acquire").map((it) => it.claim.id);
  assert.equal(new Set(claims).size, 2);
  assert.deepEqual(proxy.asked("/v1/release").map((it) => it.claim.id), claims.slice(0, 1));
});

test("a grant that is not renewed later is renewed once when half of it is gone", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const rule = proxy.hold("/v1/acquire");
  const asking = locks.mutex("a", { autoRenew: false }).lock();
  await arrives(rule, clock, 0.6 * TTL);
  assert.ok((await asking).remaining > TTL / 2);
  assert.equal(proxy.asked("/v1/renew").length, 1);
});

test("a late grant that cannot be renewed is kept until its lease is over", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const rule = proxy.hold("/v1/acquire");
  const renewals = proxy.refuse("/v1/renew", FOR_EVER);
  const asking = locks.mutex("a").lock();
  const isDone = settled(asking);
  await arrives(rule, clock, TTL - MARGIN - 2_000);
  await until(() => proxy.asked("/v1/renew").length > 1);
  assert.ok(!isDone());
  assert.deepEqual(proxy.asked("/v1/release"), []);
  clock.ahead += 2_000;
  await until(() => proxy.asked("/v1/acquire").length === 2);
  renewals.times = 0;
  assert.ok((await asking).isValid);
});

test("a try whose grant comes late begins nothing after one ttl", async (t) => {
  const { proxy, clock, locks } = await late(t);
  const rule = proxy.hold("/v1/acquire");
  const asking = assert.rejects(locks.mutex("a").tryLock(), (error: unknown) => {
    return error instanceof Unavailable && /after the lease/.test(error.message);
  });
  await arrives(rule, clock, TTL);
  await asking;
  assert.equal(proxy.asked("/v1/acquire").length, 1);
  await until(async () => (await queue(locks)).length === 0);
});

// The same without a server.

const HOLDER = { host: "h", pid: 1, program: "p" };

function record(clock: SetClock): Record {
  const request = { name: "a", mode: "exclusive", ttl: TTL, waitTtl: 10_000, autoRenew: true } as const;
  return new Record(new Claim(request, "", HOLDER), clock, false);
}

function held(remaining = TTL, margin = 0): Held {
  return { state: "held", token: 7n, ttl: TTL, remaining, margin, ambiguous: 0 };
}

test("a renewal never shortens", () => {
  const clock = new SetClock();
  const it = record(clock);
  assert.ok(it.grant(held(), clock.time));
  it.renewed(held(5_000), clock.time);
  it.renewed(held(), clock.time - 9_000);
  assert.equal(it.remaining(), TTL - MARGIN);
});

test("what remains counts and not the ttl", () => {
  const clock = new SetClock();
  const it = record(clock);
  assert.ok(it.grant(held(12_000), clock.time));
  assert.equal(it.remaining(), 12_000 - MARGIN);
  assert.ok(!record(clock).grant(held(MARGIN), clock.time));
  assert.ok(!record(clock).grant(held(NaN), clock.time));
});

test("an answer after the deadline revives nothing, and what has ended stays ended", () => {
  const clock = new SetClock();
  const it = record(clock);
  it.grant(held(), clock.time);
  clock.time += TTL - MARGIN;
  assert.ok(!it.grant(held(), clock.time - 1));
  assert.ok(it.remaining() === 0 && it.expire());
  it.renewed(held(), clock.time);
  assert.throws(() => it.token(), LockLost);
});

test("the greater of the margin here and of the one that an answer names counts", () => {
  const clock = new SetClock();
  for (const named of [0, MARGIN - 1_000, MARGIN + 1_000]) {
    const it = record(clock);
    assert.ok(it.grant(held(TTL, named), clock.time));
    assert.equal(it.remaining(), TTL - Math.max(named, MARGIN));
    assert.equal(it.leaseEnd(), clock.time + TTL);
  }
  const answer = { state: "held", token: "7", ttl_ms: TTL, remaining_ms: 2 * TTL, margin_ms: 4_000 };
  assert.deepEqual(claimStatus(answer), held(TTL, 4_000));
});

test("an answer without its numbers is none", () => {
  const answer = { state: "held", token: "7", ttl_ms: TTL, remaining_ms: TTL };
  for (const wrong of [{ token: 7 }, { token: "-7" }, { ttl_ms: null }, { remaining_ms: "9" }]) {
    assert.throws(() => claimStatus({ ...answer, ...wrong }), JSON.stringify(wrong));
  }
});

test("a lock is valid only while wall and monotonic clock agree", () => {
  const [monotonic, wall] = [new SetClock(), new SetClock()];
  const clock = new AgreeingClock(monotonic.now, wall.now);
  const passes = (monotonicMs: number, wallMs: number): number => {
    const before = clock.now();
    monotonic.time += monotonicMs;
    wall.time += wallMs;
    return clock.now() - before;
  };
  assert.equal(passes(10_000, 10_000), 10_000);
  assert.equal(passes(100_000, 108_330), 108_330, "slewed as chrony does");
  assert.equal(passes(100_000, 91_670), 100_000, "and back: never slower than either");
  assert.ok(passes(0, 40_000) > 1e11, "suspended, or set");
  assert.equal(passes(1_000, 1_000), 1_000);
  assert.ok(passes(1_000, -40_000) > 1e11, "set back: a suspend might hide in it");
  assert.equal(passes(0, 30), 30);
  assert.equal(passes(0, -30), 0, "it never goes back");
});
