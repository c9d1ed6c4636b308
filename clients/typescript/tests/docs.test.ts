/** The TypeScript of the documentation runs as it is printed, and its types are right. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

import type { Locks } from "../src/index.js";
import { PATIENCE, Site } from "./server.js";

const CLIENT = fileURLToPath(new URL("../..", import.meta.url));
const ROOT = join(CLIENT, "../..");
const PRINTED = "http://127.0.0.1:7411";
const LARGEST = 40_000;

/** The blocks of all pages, by page and number. */
function blocks(): [string, string][] {
  const docs = readdirSync(join(ROOT, "docs"), { recursive: true, encoding: "utf8" });
  const pages = [...docs.map((it) => `docs/${it}`), "README.md", "clients/typescript/README.md"];
  return pages.filter((it) => it.endsWith(".md")).flatMap((page) => {
    const text = readFileSync(join(ROOT, page), "utf8");
    const found = [...text.matchAll(/^```typescript\n(.*?)^```$/gms)];
    return found.map(([, code = ""], at): [string, string] => [`${page}, block ${at + 1}`, code]);
  });
}

const npm = (words: string[], cwd: string): string =>
  execFileSync("npm", [...words, "--offline", "--no-audit", "--no-fund"], {
    cwd,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    timeout: PATIENCE,
  });

/** What is held after the least hold of a block is over, which a dead program's locks outlive. */
async function left(locks: Locks): Promise<readonly unknown[]> {
  const end = performance.now() + 5_000;
  for (;;) {
    const states = await locks.list();
    if (states.length === 0 || performance.now() > end) {
      return states;
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

test("the package is small, and what is printed runs with it and has the right types", async (t) => {
  const site = new Site(t);
  const [packed] = JSON.parse(npm(["pack", "--json", "--pack-destination", site.folder], CLIENT));
  assert.ok(packed.size < LARGEST, `${packed.size} bytes`);
  const files: string[] = packed.files.map((it: { path: string }) => it.path);
  const expected = /^(dist\/\w+\.(js|d\.ts)|package\.json|README\.md|LICENSE-(MIT|APACHE))$/;
  assert.deepEqual(files.filter((it) => !expected.test(it)), []);
  t.diagnostic(`lockkit.tgz: ${packed.size} bytes, ${statSync(join(site.folder, packed.filename)).size} on disk`);

  const project = join(site.folder, "project");
  mkdirSync(project);
  writeFileSync(join(project, "package.json"), '{ "type": "module", "private": true }');
  npm(["install", join(site.folder, packed.filename)], project);
  const compilerOptions = {
    target: "ES2022",
    module: "NodeNext",
    lib: ["ES2022", "DOM", "ESNext.Disposable"],
    types: [],
    strict: true,
    exactOptionalPropertyTypes: true,
    outDir: "built",
  };
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions }));
  const printed = blocks();
  assert.ok(printed.length >= 3);
  const { url } = await site.server();
  for (const [at, [page, code]] of printed.entries()) {
    assert.ok(code.includes(PRINTED), page);
    writeFileSync(join(project, `block${at}.ts`), code.replace(PRINTED, url));
  }
  // The compiler of this package.
  symlinkSync(join(CLIENT, "node_modules/typescript"), join(project, "node_modules/typescript"));
  const checked = spawnSync("node", ["node_modules/typescript/bin/tsc"], {
    cwd: project,
    encoding: "utf8",
  });
  assert.equal(checked.status, 0, checked.stdout);
  for (const [at, [page]] of printed.entries()) {
    const words = [join(project, `built/block${at}.js`)];
    const ran = spawnSync("node", words, { encoding: "utf8", timeout: PATIENCE });
    assert.deepEqual([ran.status, ran.stderr], [0, ""], page);
    assert.deepEqual(await left(site.connect(url)), [], `${page} leaves a lock`);
  }
});

test("the lock of the dev dependencies names no host, and there is no other dependency", () => {
  const lock = readFileSync(join(CLIENT, "package-lock.json"), "utf8");
  assert.doesNotMatch(lock, /https?:/);
  const { dependencies, devDependencies } = JSON.parse(
    readFileSync(join(CLIENT, "package.json"), "utf8"),
  );
  assert.equal(dependencies, undefined);
  assert.deepEqual(Object.keys(devDependencies), ["@types/node", "typescript"]);
});
