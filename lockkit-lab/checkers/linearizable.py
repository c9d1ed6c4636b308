"""Checks a history of a storm without any code of lockkit: is every lock and every guarded register
linearizable? The search is that of Wing and Gong with the memory of Lowe, as Porcupine has it, which
`porcupine/main.go` gives the same models. What a fault excuses is illegal here.

    python3 linearizable.py HISTORY    # 0: all are, 1: one is not, 2: it cannot be read
"""

import json
import sys

FOREVER = float("inf")


class Take:
    """A guard was handed out between the question and the answer."""

    def __init__(self, name, mode, asked):
        self.name, self.mode, self.call, self.back = name, mode, asked, None
        self.token, self.until, self.holds = None, 0, True

    def step(self, state):
        holders, exclusive, shared = state
        if self.mode == "exclusive":
            free, known = not holders, max(exclusive, shared)
        elif self.mode == "shared":
            free, known = all(mode == "shared" for _, mode in holders), exclusive
        else:
            permits, limit = self.mode["permits"]
            free, known = sum(mode for _, mode in holders) + permits <= limit, 0
        if (self.holds and not free) or self.token <= known:
            return None
        exclusive = self.token if self.mode == "exclusive" else exclusive
        shared = max(shared, self.token) if self.mode == "shared" else shared
        return (holders | {self.held()} if self.holds else holders), exclusive, shared

    def held(self):
        return id(self), self.mode["permits"][0] if isinstance(self.mode, dict) else self.mode


class Give:
    """From now on its guard is not valid; later, as far as anybody knows, another one may be."""

    def __init__(self, take):
        self.take, self.call, self.back = take, take.until, FOREVER

    def step(self, state):
        holders, exclusive, shared = state
        mine = self.take.held()
        return (holders - {mine}, exclusive, shared) if mine in holders else None


class Access:
    """The register was asked; without an answer it may have done it at any time, or never."""

    def __init__(self, event):
        self.token, self.write, self.call = event["token"], event["write"], event["at"]
        self.back, self.answer = FOREVER, None

    def step(self, state):
        highest, value = state
        if self.token < highest:
            return state if self.answer in (None, ("stale", highest)) else None
        value = value if self.write is None else self.write
        return (self.token, value) if self.answer in (None, ("done", value)) else None


def operations(lines):
    """The operations on each lock and register."""
    takes, accesses, locks, registers = {}, {}, {}, {}
    for event in sorted(lines, key=lambda event: event["at"]):
        what, at, key = event["what"], event["at"], (event["client"], event.get("op"))
        if what == "asked":
            takes[key] = Take(event["lock"], event["how"], at)
        elif what == "granted" and takes[key].back is None:
            take = takes[key]
            take.back, take.token, take.until = at, event["token"], event["valid_until"]
            locks.setdefault(take.name, []).append(take)
        elif what == "valid":
            takes[key].until = max(takes[key].until, event["valid_until"])
        elif what == "ended":
            takes[key].until = min(takes[key].until, at)
        elif what == "client_crashed":
            for take in (take for (client, _), take in takes.items() if client == key[0]):
                take.until = min(take.until, at)
        elif what == "register_asked":
            accesses[key] = Access(event)
            registers.setdefault(event["register"], []).append(accesses[key])
        elif what in ("register_done", "register_stale"):
            accesses[key].back = at
            answer = "done" if what == "register_done" else "stale"
            accesses[key].answer = (answer, event["value" if answer == "done" else "highest"])
    for taken in locks.values():
        for take in taken:
            take.holds = take.back < take.until
        taken.extend([Give(take) for take in taken if take.holds])
    yield from ((f"lock {name}", ops, (frozenset(), 0, 0)) for name, ops in sorted(locks.items()))
    yield from ((f"register {name}", ops, (0, 0)) for name, ops in sorted(registers.items()))


def linearizable(ops, state):
    """Whether some order explains all of them, in which each takes effect between call and back."""
    events = sorted(end for i, op in enumerate(ops) for end in ((op.call, 0, i), (op.back, 1, i)))
    after = list(range(1, len(events) + 1)) + [0]  # a ring; its last place is the head
    before = [len(events), *range(len(events))]
    places = {(i, kind): place for place, (_, kind, i) in enumerate(events)}
    head, done, seen, path = len(events), 0, set(), []
    at = after[head]
    while after[head] != head:
        _, kind, i = events[at] if at != head else (None, 1, None)
        if kind == 0:
            following = ops[i].step(state)
            if following is not None and (done | 1 << i, following) not in seen:
                path.append((i, state))
                done, state = done | 1 << i, following
                seen.add((done, state))
                for place in (places[i, 0], places[i, 1]):
                    after[before[place]], before[after[place]] = after[place], before[place]
                at = after[head]
            else:
                at = after[at]
            continue
        if not path:
            return False
        i, state = path.pop()
        done ^= 1 << i
        for place in (places[i, 1], places[i, 0]):
            after[before[place]] = before[after[place]] = place
        at = after[places[i, 0]]
    return True


def main(path):
    try:
        with open(path, encoding="utf-8") as file:
            head, *lines = map(json.loads, file)
        if head["lockkit_history"] != 1 or head["events"] != len(lines):
            raise ValueError("it is cut off, or of another version")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    illegal = False
    for name, ops, state in operations(lines):
        legal = linearizable(ops, state)
        illegal = illegal or not legal
        print(f"{name}: {len(ops)} operations, {'linearizable' if legal else 'ILLEGAL'}")
    return int(illegal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
