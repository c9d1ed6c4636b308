"""Troubles that do not pass by themselves, and how they are told from those that do."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

import lockkit
from conftest import Connect
from lockkit import _connection
from proxy import Proxy
from server import PATIENCE, Server
from test_access import PEM
from waiting import begin, until

NO_NAME = ".".join(["a" * 63] * 5)
"""Longer than the name of any host: nobody needs to be asked about it."""


def refused(locks: lockkit.Locks, match: str, sent: bool) -> None:
    """All that waits, asks or looks is refused, and nothing waits for good."""
    asks: List[Callable[[], object]] = [
        locks.mutex("a").try_lock,
        locks.mutex("a").lock,
        lambda: locks.mutex("a").try_lock_for(PATIENCE),
        lambda: locks.inspect("a"),
        locks.list,
        lambda: locks.break_lock("a", 1),
        locks.register("r").get,
        lambda: locks.register("r").put("1"),
    ]
    for ask in asks:
        with pytest.raises(lockkit.Refused, match=match) as error:
            begin(ask).result(PATIENCE)
        assert error.value.maybe_done is sent


def tls(verify: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    if verify:
        context.load_verify_locations(PEM)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_certificate_that_is_not_trusted(server: Server, connect: Connect) -> None:
    with Proxy(server.port, tls()) as proxy:
        refused(connect(proxy.url), r"127.0.0.1.*not trusted.*\?ca=FILE", sent=False)


def test_a_certificate_for_another_name(server: Server, connect: Connect) -> None:
    with Proxy(server.port, tls()) as proxy:
        url = proxy.url.replace("127.0.0.1", "localhost")
        refused(connect(f"{url}?ca={PEM}"), "use a name that is in it", sent=False)


def test_a_certificate_of_the_client_that_is_missing(server: Server, connect: Connect) -> None:
    with Proxy(server.port, tls(verify=True)) as proxy:
        # With TLS 1.3 the server says so after the request.
        refused(connect(f"{proxy.url}?ca={PEM}"), r"\?cert=FILE&key=FILE", sent=True)
        with connect(f"{proxy.url}?ca={PEM}&cert={PEM}&key={PEM}").mutex("a") as lock:
            assert lock.is_valid()


def test_tls_where_it_is_not_spoken(server: Server, connect: Connect) -> None:
    url = server.url.replace("http://", "https://")
    refused(connect(url), "does not speak TLS: use http://", sent=False)


def test_no_tls_where_it_is_spoken(tmp_path: Path, connect: Connect) -> None:
    options = ["--tls-cert", str(PEM), "--tls-key", str(PEM)]
    server = Server(f"sqlite:{tmp_path / 'other.db'}", "127.0.0.1:0", *options)
    try:
        with connect(f"{server.url}?ca={PEM}").mutex("a") as lock:
            assert lock.is_valid()
        refused(connect(server.url.replace("https://", "http://")), "use https://", sent=True)
    finally:
        server.kill()


@pytest.fixture
def greeter() -> Iterator[str]:
    """A server that speaks first, and leaves its connections open, as one of SSH."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_ones: List[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                open_ones.append(listener.accept()[0])
            except OSError:
                return
            open_ones[-1].sendall(b"SSH-2.0-greeter\r\n")

    threading.Thread(target=serve, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for it in open_ones:
        it.close()


def test_what_does_not_speak_http(greeter: str, connect: Connect) -> None:
    refused(connect(greeter), "does not speak HTTP", sent=True)


@pytest.mark.parametrize("json", [{"message": "Not Found"}, {"code": 404}, {"code": "x", "a": 1}])
@pytest.mark.parametrize("status", [200, 404])
def test_another_service_that_speaks_json(
    connect: Connect, proxy: Proxy, status: int, json: Any
) -> None:
    paths = ["acquire", "release", "inspect", "list", "break", "registers/load", "registers/store"]
    for path in paths:
        proxy.answer(f"/v1/{path}", status, 1000, **json)
    refused(connect(proxy.url), "no lock service of this version", sent=True)


def test_a_name_that_nobody_has(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lockkit.Unavailable, match="is the name right"):
        connect(f"http://{NO_NAME}").mutex("a").try_lock()
    # It is taken for the last word after a time in which a container would have got its name.
    monkeypatch.setattr(_connection, "NAME_PATIENCE", 0.2)
    with pytest.raises(lockkit.Refused, match="is the name right"):
        begin(connect(f"http://{NO_NAME}").mutex("a").lock).result(PATIENCE)


def test_one_of_several_servers_refuses_nobody(
    server: Server, greeter: str, connect: Connect
) -> None:
    both = f"{greeter},{server.url[len('http://'):]}"
    with connect(both).mutex("a") as lock:
        assert lock.is_valid()


def test_after_a_first_answer_it_passes(connect: Connect, proxy: Proxy) -> None:
    locks = connect(proxy.url)
    held = locks.mutex("a").lock()
    waiting = begin(locks.mutex("a").lock)
    until(lambda: proxy.asked("/v1/wait"))
    for _ in range(3):
        proxy.answer("/v1/wait", 404)
        proxy.answer("/v1/wait", 404, message="Not Found")
    (before,) = locks.inspect("a").waiters
    held.release()
    lock = waiting.result(PATIENCE)
    assert lock.token == before.token, "it kept its place"
    proxy.answer("/v1/acquire", 404)
    assert begin(locks.mutex("b").lock).result(PATIENCE).is_valid()


def test_a_claim_of_a_spoiled_answer_is_given_back(connect: Connect, proxy: Proxy) -> None:
    watching = connect()
    rule = proxy.spoil("/v1/acquire")
    with pytest.raises(lockkit.Refused) as error:
        connect(proxy.url, ttl=3600, wait_ttl=3600).mutex("a").lock()
    assert error.value.maybe_done and rule.reached.is_set()
    until(lambda: not watching.inspect("a").queue)


@pytest.mark.parametrize("code", ["unauthorized", "forbidden", "backend"])
def test_a_release_in_the_background_goes_on_when_it_is_refused(
    connect: Connect, proxy: Proxy, code: str
) -> None:
    watching = connect()
    lock = connect(proxy.url, ttl=3600).mutex("a").lock()
    refusals = proxy.answer("/v1/release", 502, 3, code=code, detail="not now")
    with pytest.raises(lockkit.Refused):
        lock.release()
    until(lambda: not watching.inspect("a").queue)
    assert refusals.times == 0


def test_who_is_not_known_is_refused_and_leaves_no_work_behind(
    connect: Connect, proxy: Proxy
) -> None:
    proxy.answer("/v1/acquire", 401, 1, code="unauthorized", detail="who are you?")
    locks = connect(proxy.url)
    with pytest.raises(lockkit.Refused, match="who are you") as error:
        locks.mutex("a").lock()
    assert error.value.code == "unauthorized" and not error.value.maybe_done
    locks.inspect("a")
    assert proxy.asked("/v1/release") == []


def test_what_is_asked_again_is_logged_once_for_all(
    connect: Connect, server: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lockkit")
    rule = proxy.refuse("/v1/acquire", times=1_000_000)
    locks = connect(proxy.url)
    waiting = [begin(locks.mutex(f"lock/{number}").lock) for number in range(5)]
    until(lambda: len(proxy.asked("/v1/acquire")) > 20)
    (warning,) = [it for it in caplog.records if it.levelno == logging.WARNING]
    assert warning.name == "lockkit" and proxy.url[len("http://") :] in warning.getMessage()
    rule.times = 0
    for it in waiting:
        it.result(PATIENCE).release()
    assert [it.levelno for it in caplog.records] == [logging.WARNING, logging.INFO]
