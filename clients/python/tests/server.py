"""A server of the lock service, as a process that a test can stop, freeze and kill."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60.0
"""How long a test waits for what must come, in seconds: on a machine that does much else, too."""


def program() -> str:
    """The ``lockkit`` command: what ``LOCKKIT_BIN`` says, or what cargo built last."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return os.environ.get("LOCKKIT_BIN", str(target / "debug" / "lockkit"))


class Server:
    """``lockkit serve``, which is ready when this returns."""

    def __init__(self, backend: str, listen: str = "127.0.0.1:0", *options: str) -> None:
        self._process = subprocess.Popen(
            [program(), "serve", "--url", backend, "--listen", listen, *options],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        said: "queue.Queue[str]" = queue.Queue()
        threading.Thread(target=self._read, args=(said,), daemon=True).start()
        self.url = self._place(said)
        port = re.search(r":(\d+)$", self.url)
        self.port = int(port[1]) if port else 0

    def _read(self, said: "queue.Queue[str]") -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                said.put(line)
        said.put("")

    def _place(self, said: "queue.Queue[str]") -> str:
        heard = ""
        while True:
            line = said.get(timeout=PATIENCE)
            heard += line
            found: Optional[re.Match[str]] = re.search(r" at (http\S+)$", line.rstrip())
            if found:
                return found[1]
            assert line, f"the server ended: {heard}"

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Asks it to end, and waits until it has."""
        self._process.terminate()
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
