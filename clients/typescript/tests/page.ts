/** What a page of a browser does; it reports to the server that it comes from. */

import { LockLost, Unavailable, connect } from "../src/index.js";

const report: Record<string, string | null> = {};
const locks = connect(location.origin);

async function test(name: string, body: () => Promise<void>): Promise<void> {
  try {
    await body();
    report[name] = null;
  } catch (error) {
    report[name] = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  }
}

function check(holds: boolean, what: string): void {
  if (!holds) {
    throw new Error(what);
  }
}

function fired(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    signal.addEventListener("abort", () => resolve());
    if (signal.aborted) {
      resolve();
    }
  });
}

await test("a mutex excludes, and its tokens grow", async () => {
  const lock = await locks.mutex("a").lock();
  const first = lock.token;
  check((await locks.mutex("a").tryLock()) === undefined, "it is busy");
  check((await locks.mutex("a").tryLockFor(100)) === undefined, "it stays busy");
  const [holder] = (await locks.inspect("a")).holders;
  check(holder?.holder.host === location.hostname, "others see the page's host");
  await lock.release();
  check((await locks.mutex("a").run((it) => it.token)) > first, "tokens grow");
});

await test("more jobs than a browser has connections take turns", async () => {
  let [inside, most, done] = [0, 0, 0];
  const job = () =>
    locks.mutex("a", { ttl: 2_000, waitTtl: 3_000 }).run(async () => {
      most = Math.max(most, ++inside);
      await new Promise((resolve) => setTimeout(resolve, 20));
      inside -= 1;
      done += 1;
    });
  // A lock that is held meanwhile is renewed, however many wait.
  const kept = await locks.mutex("kept", { ttl: 1_500 }).lock();
  await Promise.all(Array.from({ length: 12 }, job));
  check(most === 1 && done === 12, `${most} at once, ${done} done`);
  check(kept.isValid, "the lock beside them was kept");
  await kept.release();
});

await test("an aborted call leaves no claim", async () => {
  const held = await locks.mutex("a").lock();
  const abort = new AbortController();
  const waiting = locks.mutex("a").lock({ signal: abort.signal });
  while ((await locks.inspect("a")).waiters.length === 0);
  abort.abort(new Error("enough"));
  const error = await waiting.then(
    () => undefined,
    (it: Error) => it,
  );
  check(error?.message === "enough", `the reason is given: ${error}`);
  await held.release();
  while ((await locks.inspect("a")).queue.length > 0);
});

await test("a broken lock fires its signal and stops a fetch", async () => {
  const error = await locks
    .mutex("a", { ttl: 900 })
    .run(async (lock) => {
      await locks.breakLock("a", lock.token, { reason: "a test" });
      await fetch("/v1/wait-for-nothing", { method: "POST", signal: lock.signal }).catch(() => {});
      await fired(lock.signal);
      lock.signal.throwIfAborted();
    })
    .catch((it: unknown) => it);
  check(error instanceof LockLost && error.reason === "broken", `${error}`);
});

await test("a lock is lost while the service does not answer", async () => {
  const lock = await connect(`${location.origin}?timeout=300ms`, { ttl: 1_500, warn: () => {} })
    .mutex("a")
    .lock();
  const { signal } = lock;
  await fetch("/freeze", { method: "POST" });
  await fired(signal);
  await fetch("/thaw", { method: "POST" });
  check(signal.reason instanceof LockLost && signal.reason.reason === "unreachable", "it says why");
  check(!lock.isValid, "it is not valid");
});

await test("registers and latches work", async () => {
  const lock = await locks.mutex("a").lock();
  const register = locks.register("r");
  await register.put("ü", { lock });
  check((await register.get())?.text() === "ü", "what was stored is there");
  check((await locks.latch("l", 1).countDown("page")) === 0, "the latch is open");
  await lock.release();
});

await test("a page of another origin is refused by the service", async () => {
  const { port } = location;
  const other = connect(`http://localhost:${port}?timeout=2s`, { warn: () => {} });
  const error = await other
    .mutex("a")
    .tryLock()
    .catch((it: unknown) => it);
  check(error instanceof Unavailable, `${error}`);
});

await fetch("/report", { method: "POST", body: JSON.stringify(report) });
