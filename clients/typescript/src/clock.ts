/** The clock of deadlines. */

/** What deadlines are read on. */
export interface Clock {
  /** Milliseconds since an arbitrary moment; never goes back. */
  now(): number;
}

/** How far the clock jumps when it cannot be known how much time has passed, in milliseconds. */
const JUMP = 1e12;
const TOLERANCE = 50;
/** Daemons that set the time make a clock faster or slower by less than this part. */
const SLEWED = 0.1;
// Where a clock counts in steps of some milliseconds, more anchors would make this clock too fast.
const ANCHOR_DISTANCE = 1_000;

/**
 * The clock of JavaScript's two clocks: `performance.now()`, which stands still while many systems
 * are suspended, and `Date.now()`, which anyone may set.
 *
 * While both advance alike, this is the faster of the two. When they disagree, the system was
 * suspended or the wall clock was set, and it cannot be told which. This clock then jumps so far
 * ahead that every lock that was trusted before has ended.
 *
 * It counts, of each interval between two anchors, what one of the two counted. Never the greater of
 * two readings: clocks drift apart, and a suspend that is shorter than their distance would vanish.
 */
export class AgreeingClock implements Clock {
  readonly #monotonic: () => number;
  readonly #wall: () => number;
  #anchor: readonly [number, number];
  #counted = 0;
  #latest = 0;

  constructor(monotonic = () => performance.now(), wall = () => Date.now()) {
    this.#monotonic = monotonic;
    this.#wall = wall;
    this.#anchor = this.#read();
  }

  now(): number {
    // A wall clock that is set back by less than what is tolerated must not set this one back.
    this.#latest = Math.max(this.#latest, this.#count());
    return this.#latest;
  }

  #count(): number {
    const [monotonic, wall] = this.#anchor;
    let passed = between(this.#monotonic() - monotonic, this.#wall() - wall);
    if (passed >= ANCHOR_DISTANCE) {
      const now = this.#read();
      passed = between(now[0] - monotonic, now[1] - wall);
      this.#anchor = now;
      this.#counted += passed;
      return this.#counted;
    }
    return this.#counted + passed;
  }

  /** Both clocks at one moment: a process that was interrupted in between reads again. */
  #read(): readonly [number, number] {
    for (let attempt = 0; ; attempt++) {
      const before = this.#monotonic();
      const wall = this.#wall();
      if (this.#monotonic() - before < 1 || attempt === 9) {
        return [before, wall];
      }
    }
  }
}

function between(monotonic: number, wall: number): number {
  const longer = Math.max(monotonic, wall, 0);
  return Math.abs(wall - monotonic) > TOLERANCE + SLEWED * longer ? longer + JUMP : longer;
}
