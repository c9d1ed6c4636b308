/** What a program on another runtime does: `runtimes.test.ts` starts it, and reads what it reports. */

import { once } from "node:events";
import { createServer } from "node:net";

import { LockLost, Refused, Unavailable, connect } from "../src/index.js";

const [, , url = "", command = ""] = process.argv;
const report: Record<string, string | null> = {};

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

const locks = connect(url);

if (command === "hold") {
  // Timers and connections that are kept must not keep the process.
  const lock = await locks.mutex("kept").lock();
  (globalThis as { lock?: unknown }).lock = lock;
  console.log(String(lock.token));
} else {
  await test("a mutex excludes, and its tokens grow", async () => {
    const lock = await locks.mutex("a").lock();
    const first = lock.token;
    check((await locks.mutex("a").tryLock()) === undefined, "it is busy");
    check((await locks.mutex("a").tryLockFor(100)) === undefined, "it stays busy");
    const [holder] = (await locks.inspect("a")).holders;
    check(holder?.holder.pid === process.pid, "others see the process");
    check(holder?.holder.program === "runtime.js", `others see the program: ${holder?.holder.program}`);
    await lock.release();
    check((await locks.mutex("a").run((it) => it.token)) > first, "tokens grow");
  });

  await test("a held lock is renewed while others wait", async () => {
    const kept = await locks.mutex("kept", { ttl: 900 }).lock();
    let inside = 0;
    const job = () =>
      locks.mutex("b").run(async () => {
        check(++inside === 1, "one at a time");
        await new Promise((resolve) => setTimeout(resolve, 100));
        inside -= 1;
      });
    await Promise.all(Array.from({ length: 12 }, job));
    check(kept.isValid, "the lock beside them was kept");
    await kept.release();
  });

  await test("a broken lock fires its signal, and an aborted wait leaves no claim", async () => {
    const error = await locks
      .mutex("a", { ttl: 900 })
      .run(async (lock) => {
        const abort = new AbortController();
        const waiting = locks.mutex("a").lock({ signal: abort.signal });
        while ((await locks.inspect("a")).waiters.length === 0);
        abort.abort(new Error("enough"));
        const reason = await waiting.catch((it: Error) => it.message);
        check(reason === "enough", `${reason}`);
        await locks.breakLock("a", lock.token, { reason: "a test" });
        await fired(lock.signal);
        lock.signal.throwIfAborted();
      })
      .catch((it: unknown) => it);
    check(error instanceof LockLost && error.reason === "broken", `${error}`);
    while ((await locks.inspect("a")).queue.length > 0);
  });

  await test("slots, several locks, registers and latches work", async () => {
    await locks.slots("gpu", 2).run(async (slot) => {
      check(slot.number === 0, "the lowest");
      await locks.register("r").put("ü", { lock: slot.lock });
    });
    check((await locks.register("r").get())?.text() === "ü", "what was stored is there");
    await locks.multi(["b", "a"]).run((held) => check(held.tokens.length === 2, "both"));
    check((await locks.latch("l", 1).countDown("here")) === 0, "the latch is open");
    check((await locks.once("job").run(() => "done")).text() === "done", "it is done");
  });

  await test("a lock object that is dropped is released", async () => {
    const long = connect(url, { ttl: 3_600_000, waitTtl: 3_600_000 });
    await long.mutex("dropped").lock().then(() => undefined);
    const collect =
      (globalThis as { gc?: () => void }).gc ??
      (globalThis as { Bun?: { gc(now: boolean): void } }).Bun?.gc.bind(null, true);
    check(collect !== undefined, "garbage can be collected by hand");
    const end = performance.now() + 30_000;
    while ((await locks.inspect("dropped")).queue.length > 0) {
      check(performance.now() < end, "it is not released");
      collect?.();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  });

  await test("a connection that is refused was not sent, and a port that is blocked is told", async () => {
    const failure = (port: number) =>
      connect(`http://127.0.0.1:${port}`, { warn: () => {} })
        .mutex("a")
        .tryLock()
        .catch((it: unknown) => it);
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as { port: number };
    await new Promise((closed) => server.close(closed));
    const gone = await failure(port);
    check(gone instanceof Unavailable && !gone.maybeDone, `${gone}`);
    // Bun blocks none.
    const blocked = await failure(1);
    check(
      blocked instanceof Refused || ("Bun" in globalThis && blocked instanceof Unavailable),
      `${blocked}`,
    );
  });

  console.log(JSON.stringify(report));
}
