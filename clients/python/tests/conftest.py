"""The real server: ``lockkit serve`` over a SQLite file of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator, List

import pytest

import lockkit
from proxy import Proxy
from server import Server

Connect = Callable[..., lockkit.Locks]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts servers that are one service: over one file."""
    started: List[Server] = []

    def start() -> Server:
        started.append(Server(f"sqlite:{tmp_path / 'locks.db'}"))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def server(service: Callable[[], Server]) -> Server:
    return service()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Connects to the server, or to another URL; closed at the end."""
    made: List[lockkit.Locks] = []

    def begin(url: str = "", **options: object) -> lockkit.Locks:
        made.append(lockkit.connect(url or server.url, **options))  # type: ignore[arg-type]
        return made[-1]

    yield begin
    for locks in made:
        locks.close(0.2)


@pytest.fixture
def locks(connect: Connect) -> lockkit.Locks:
    return connect()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy
