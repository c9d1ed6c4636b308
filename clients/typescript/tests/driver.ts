/** The program by which the conformance suite drives this client on Node, Deno and Bun; see `operations.ts`. */

import { createInterface } from "node:readline";

import { ask } from "./operations.js";

for await (const line of createInterface({ input: process.stdin })) {
  ask(line, console.log);
}
process.exit();
