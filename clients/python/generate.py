"""Writes the parts of ``lockkit._sync`` that are those of ``lockkit.aio`` without coroutines, so that
each is written once. ``tests/test_generated.py`` fails while they differ; then run this.

What differs in more than words is written by hand: guards, and the blocks of a mutex.
"""

import re
from pathlib import Path
from typing import Dict

SOURCE = Path(__file__).parent / "src/lockkit"
FILES = ["_group.py", "_locks.py", "_primitives.py", "_register.py"]

# In this order. Those of the documentation first: they have words of the code in them.
WORDS = [
    (r"for asyncio", "in programs with threads"),
    (r"programs with asyncio", "programs with threads"),
    (r"background tasks?", "background thread"),
    (r", in the event loop that uses it first\.", ". Thread-safe."),
    (r"A program\n    that ends without that costs", "So\n    does the end of the program; one that is killed costs"),
    (r", which is then cancelled: nothing", ": then nothing"),
    (r"an ``async with``", "a ``with``"),
    # What waits.
    (r"await cancelled_by_loss\(guard, work\)", "work(guard)"),
    (r"cancelled_by_loss, ", ""),
    (r"Awaitable\[(.*)\]\]$", r"\1]"),
    (r"AsyncIterator, Awaitable, (.*)Optional", r"\1Iterator, Optional"),
    (r"AsyncIterator", "Iterator"),
    (r"Acquiring, Guard", "Guard"),
    (r"Acquiring", "Guard"),
    (r"\basync (def|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"__a(enter|exit)__", r"__\1__"),
    # Where it runs.
    (r"EngineSlot", "EngineThread"),
    (r"_slot\b", "_thread"),
    (r"\bslot\b", "thread"),
]


def generated() -> Dict[Path, str]:
    """The files, and what belongs into them."""
    texts = {}
    for name in FILES:
        text = (SOURCE / "aio" / name).read_text()
        for asynchronous, synchronous in WORDS:
            text = re.sub(asynchronous, synchronous, text, flags=re.MULTILINE)
        note = f"# Written by generate.py, from aio/{name}.\n"
        texts[SOURCE / "_sync" / name] = note + text
    return texts


if __name__ == "__main__":
    for file, text in generated().items():
        file.write_text(text)
