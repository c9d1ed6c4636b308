/** The client on Deno and Bun. Skipped where they cannot be had: `cargo xtask install` fetches them. */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

import { PATIENCE, Site } from "./server.js";

interface Runtime {
  readonly name: string;
  /** Where its program lies in the packages that `cargo xtask install` fetches. */
  readonly program: string;
  /** Its arguments before those of a program: it may reach the network, and read who it is. */
  readonly words: readonly string[];
}

const RUNTIMES: readonly Runtime[] = [
  {
    name: "Deno",
    program: "@deno/linux-x64-glibc/deno",
    words: ["run", "--allow-net=127.0.0.1", "--allow-env", "--allow-sys", "--v8-flags=--expose-gc"],
  },
  { name: "Bun", program: "@oven/bun-linux-x64/bin/bun", words: ["run"] },
];

for (const { name, program, words } of RUNTIMES) {
  const path = join(process.env["LOCKKIT_RUNTIMES"] ?? "", program);
  const skip = existsSync(path) ? false : `skipped: there is no ${name}; cargo xtask install fetches it`;
  const script = fileURLToPath(new URL("runtime.js", import.meta.url));
  const run = (...rest: string[]) => {
    const ran = spawnSync(path, [...words, script, ...rest], {
      encoding: "utf8",
      timeout: PATIENCE,
      // No look for a newer version, no colours.
      env: { ...process.env, DENO_NO_UPDATE_CHECK: "1", NO_COLOR: "1" },
    });
    assert.equal(ran.status, 0, `${ran.status} ${ran.signal} ${ran.stdout} ${ran.stderr}`);
    return ran.stdout;
  };

  test(`on ${name}`, { skip, timeout: 3 * PATIENCE }, async (t) => {
    const site = new Site(t);
    const { url } = await site.server();
    const report: Record<string, string | null> = JSON.parse(run(url));
    assert.ok(Object.keys(report).length >= 6, JSON.stringify(report));
    for (const [what, error] of Object.entries(report)) {
      await t.test(`on ${name}: ${what}`, () => assert.equal(error, null));
    }
    assert.deepEqual(await site.connect(url).list(), []);
  });

  test(`a program on ${name} with a lock and nothing else to do ends`, { skip }, async (t) => {
    const site = new Site(t);
    const { url } = await site.server();
    const token = run(url, "hold").trim();
    const [holder] = (await site.connect(url).inspect("kept")).holders;
    assert.equal(String(holder?.token), token, "it costs the ttl");
  });
}
