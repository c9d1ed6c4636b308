"""What a state of 20 MB costs a backend: memory or size, and what was written, around four writes of it.

    LOCKKIT=target/debug/lockkit python3 bench/terraform_size.py

Starts servers of its own on 127.0.0.1, as root, and ends them. The state is random text, of which the
least is left by no compression. docs/terraform.md has the figures.
"""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

LOCKKIT = os.environ.get("LOCKKIT", "lockkit")
STATE_BYTES = 20_000_000
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Redis:
    def __init__(self, folder):
        port = str(free_port())
        words = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", folder]
        self.process = subprocess.Popen([*words, "--save", "", "--appendonly", "no"], **QUIET)
        self.cli = ["redis-cli", "-p", port, "INFO"]
        self.url = f"redis://127.0.0.1:{port}"
        until(lambda: answers(port))

    def figures(self):
        said = subprocess.run(self.cli, capture_output=True, text=True).stdout
        info = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        commands = int(info["total_commands_processed"])
        return int(info["used_memory"]), f"peak {mb(int(info['used_memory_peak']))}", commands

    written = "commands, those of scripts too"

    def end(self):
        self.process.terminate()
        self.process.wait()


class Postgres:
    def __init__(self, folder):
        port = str(free_port())
        tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        shutil.chown(folder, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        make = [tools / "initdb", "-D", f"{folder}/db", "-U", "postgres", "-A", "trust"]
        subprocess.run([*user, *make], check=True, cwd=folder, **QUIET)
        words = [tools / "postgres", "-D", f"{folder}/db", "-p", port]
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
        self.process = subprocess.Popen([*user, *words, *options], cwd=folder, **QUIET)
        self.url = f"postgres://postgres@127.0.0.1:{port}/postgres"
        until(lambda: self.ask("SELECT 1") == "1")

    def ask(self, query):
        words = ["psql", "-X", "-A", "-t", "-d", self.url, "-c", query]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    def figures(self):
        size = self.ask("SELECT pg_database_size('postgres')")
        return int(size), "", int(self.ask("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    written = "bytes of log"

    def end(self):
        self.process.send_signal(2)
        self.process.wait()


class Sqlite:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.url = f"sqlite:{folder}/locks.db"

    def figures(self):
        sizes = {it.name: it.stat().st_size for it in self.folder.glob("locks.db*")}
        return sum(sizes.values()), f"log {mb(sizes.get('locks.db-wal', 0))}", 0

    written = "not counted"

    def end(self):
        pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", int(port)), 1).close()
        return True
    except OSError:
        return False


def until(holds):
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    raise SystemExit("a server does not start")


def mb(size):
    return f"{size / 1e6:.1f} MB"


def call(port, method, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise SystemExit(f"{method} {path}: {answer.status}")


def state():
    text = base64.b64encode(os.urandom(STATE_BYTES * 3 // 4)).decode()
    return json.dumps({"version": 4, "serial": 1, "text": text})


def measure(kind):
    with tempfile.TemporaryDirectory() as folder:
        server, port = kind(folder), free_port()
        words = [LOCKKIT, "serve", "--url", server.url, "--listen", f"127.0.0.1:{port}"]
        service = subprocess.Popen(words, **QUIET)
        try:
            until(lambda: answers(port))
            info = {"ID": "one", "Operation": "apply", "Info": "", "Who": "me", "Path": ""}
            info |= {"Version": "1", "Created": "2026-11-26T00:00:00Z"}
            call(port, "PUT", "/v1/terraform-lock/big", json.dumps(info))
            print(f"{kind.__name__}: {mb(server.figures()[0])} with the lock")
            for turn in range(1, 5):
                before, _, written = server.figures()
                began = time.monotonic()
                call(port, "POST", "/v1/terraform/big?ID=one", state())
                took = time.monotonic() - began
                size, more, now = server.figures()
                print(
                    f"  write {turn}: {took:.1f} s, {(size - before) / 1e6:+.1f} MB, now {mb(size)} "
                    f"{more}, written {now - written} ({server.written})"
                )
        finally:
            service.terminate()
            service.wait()
            server.end()


if __name__ == "__main__":
    for backend in (Redis, Postgres, Sqlite):
        measure(backend)
