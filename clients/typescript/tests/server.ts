/** A server of the lock service, as a process that a test can stop, freeze and kill. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";

import { type Locks, connect } from "../src/index.js";
import type { ConnectOptions } from "../src/settings.js";

/** How long a test waits for what must come, in milliseconds: on a machine that does much else, too. */
export const PATIENCE = 60_000;

/** The `lockkit` command: what `LOCKKIT_BIN` says. */
export function program(): string {
  const path = process.env["LOCKKIT_BIN"];
  if (path === undefined) {
    throw new Error("LOCKKIT_BIN is to say where the lockkit command is");
  }
  return path;
}

/** `lockkit serve`. */
export class Server {
  private constructor(
    private readonly process: ChildProcess,
    readonly url: string,
  ) {}

  get port(): number {
    return Number(new URL(this.url).port);
  }

  /** The server, which is ready when this settles. */
  static async start(backend: string, listen = "127.0.0.1:0", ...options: string[]) {
    const args = ["serve", "--url", backend, "--listen", listen, ...options];
    const child = spawn(program(), args, { stdio: ["ignore", "ignore", "pipe"] });
    const said: string[] = [];
    const url = await new Promise<string>((resolve, reject) => {
      child.stderr.setEncoding("utf8").on("data", (text: string) => {
        said.push(text);
        const [, url] = / at (http\S+)$/m.exec(said.join("")) ?? [];
        if (url !== undefined) {
          resolve(url);
        }
      });
      child.once("exit", () => reject(new Error(`the server ended: ${said.join("")}`)));
    });
    return new Server(child, url);
  }

  freeze(): void {
    this.process.kill("SIGSTOP");
  }

  thaw(): void {
    this.process.kill("SIGCONT");
  }

  /** Asks it to end, and waits until it has. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
  }

  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const ended = once(this.process, "exit");
      this.process.kill(signal);
      await ended;
    }
  }
}

/** Servers and clients of one test, which end with it. */
export class Site {
  readonly folder = mkdtempSync(join(tmpdir(), "lockkit-ts-"));
  readonly backend = `sqlite:${join(this.folder, "locks.db")}`;
  /** What the clients were warned of. */
  readonly warnings: string[] = [];
  readonly #ends: (() => Promise<unknown> | void)[] = [];

  constructor(test: TestContext) {
    test.after(async () => {
      for (const end of this.#ends.reverse()) {
        await end();
      }
      rmSync(this.folder, { recursive: true });
    });
  }

  /** Has this done at the end. */
  atEnd(end: () => Promise<unknown> | void): void {
    this.#ends.push(end);
  }

  /** Another server over the same backend. */
  async server(listen?: string, ...options: string[]): Promise<Server> {
    const server = await Server.start(this.backend, listen, ...options);
    this.atEnd(() => server.kill());
    return server;
  }

  connect(url: string, options: ConnectOptions = {}): Locks {
    const warn = (message: string): void => void this.warnings.push(message);
    const locks = connect(url, { warn, ...options });
    this.atEnd(() => locks.close(0));
    return locks;
  }
}

/** Returns once this holds; what it says is asked again and again. */
export async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + PATIENCE;
  while (!(await holds())) {
    if (performance.now() > end) {
      throw new Error(`this did not come true: ${holds}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** The reason with which a signal fires. */
export async function fired(signal: AbortSignal): Promise<unknown> {
  if (!signal.aborted) {
    const soon = AbortSignal.timeout(PATIENCE);
    await Promise.race([once(signal, "abort"), once(soon, "abort")]);
  }
  return signal.reason;
}

/** Whether a promise has settled. */
export function settled(promise: Promise<unknown>): () => boolean {
  let done = false;
  const mark = (): void => void (done = true);
  promise.then(mark, mark);
  return () => done;
}
