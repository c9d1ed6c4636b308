"""A proxy that loses and delays answers, one that a test tells which."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Optional, Tuple

from server import PATIENCE


def _json(content: Dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


class Rule:
    """What happens to the answers of some requests."""

    def __init__(self, path: str, times: int, what: str) -> None:
        self.path = path
        self.times = times
        self.what = what
        self.reached = threading.Event()
        """A request that this is about has come so far."""
        self.kind, self.content = "text/html", b"<p>"
        self.status = 0
        """What the server answered; of the last request."""
        self.answered = threading.Event()
        self.go_on = threading.Event()
        """Set by the test: what is held may go on."""


class Proxy:
    """Passes requests on to a port of this host, and keeps what was asked."""

    def __init__(self, port: int, tls: Optional[ssl.SSLContext] = None) -> None:
        self.requests: List[Tuple[str, Dict[str, Any]]] = []
        self.authorizations: List[Optional[str]] = []
        self._port = port
        self._mutex = threading.Lock()
        self._rules: List[Rule] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer._handle(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that left

            def shutdown_request(self, request: Any) -> None:
                # What was not read would reset the connection, and an alert of TLS be lost with it.
                try:
                    request.shutdown(socket.SHUT_WR)
                    request.settimeout(1)
                    while request.recv(4096):
                        pass
                except OSError:
                    pass
                self.close_request(request)

        self._listener = Listener(("127.0.0.1", 0), Handler)
        if tls is not None:
            # The handshake is made by the thread of the connection.
            self._listener.socket = tls.wrap_socket(
                self._listener.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.server_address[1]}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for rule in self._rules:
            rule.go_on.set()
        self._listener.shutdown()
        self._listener.server_close()

    def lose(self, path: str, times: int = 1) -> Rule:
        """The server does as it is asked, and its answer gets lost."""
        return self._rule(Rule(path, times, "lose"))

    def refuse(self, path: str, times: int = 1) -> Rule:
        """The request gets lost."""
        return self._rule(Rule(path, times, "refuse"))

    def answer(self, path: str, status: int, times: int = 1, **json: Any) -> Rule:
        """The proxy answers requests by itself: in HTML, with this JSON, or with a problem where that
        has a code."""
        rule = Rule(path, times, "answer")
        rule.status = status
        if json:
            rule.kind = "application/problem+json" if "code" in json else "application/json"
            rule.content = _json(json)
        return self._rule(rule)

    def spoil(self, path: str) -> Rule:
        """The server does as it is asked, and its answer arrives as a page in HTML."""
        return self._rule(Rule(path, 1, "spoil"))

    def hold(self, path: str, times: int = 1) -> Rule:
        """The answer arrives when the test says so."""
        return self._rule(Rule(path, times, "hold"))

    def delay(self, path: str) -> Rule:
        """The request arrives when the test says so, also when its client is gone."""
        return self._rule(Rule(path, 1, "delay"))

    def asked(self, path: str) -> List[Dict[str, Any]]:
        """The requests that came for this path."""
        with self._mutex:
            return [body for at, body in self.requests if at == path]

    def _rule(self, rule: Rule) -> Rule:
        with self._mutex:
            self._rules.append(rule)
        return rule

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        with self._mutex:
            self.requests.append((handler.path, json.loads(body)))
            self.authorizations.append(handler.headers["authorization"])
            rule = self._rule_for(handler.path)
        if rule is not None and rule.what in ("refuse", "delay"):
            rule.reached.set()
            if rule.what == "refuse":
                return self._cut(handler)
            rule.go_on.wait()
        if rule is not None and rule.what == "answer":
            rule.reached.set()
            return self._reply(handler, rule.status, rule.kind, rule.content)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        connection.request("POST", handler.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if rule is not None:
            rule.status = answer.status
            rule.answered.set()
            rule.reached.set()
            if rule.what == "lose":
                return self._cut(handler)
            if rule.what == "spoil":
                return self._reply(handler, 200, rule.kind, rule.content)
            rule.go_on.wait()
        self._reply(handler, answer.status, answer.headers["content-type"], content)

    def _reply(
        self, handler: BaseHTTPRequestHandler, status: int, kind: str, content: bytes
    ) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _rule_for(self, path: str) -> Optional[Rule]:
        for rule in self._rules:
            if rule.path == path and rule.times > 0:
                rule.times -= 1
                return rule
        return None

    def _cut(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)
