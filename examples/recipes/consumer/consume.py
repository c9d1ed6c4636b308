"""Applies the messages of a partition in their order, each once, whoever is paused or killed meanwhile.

Run under `lockkit elect`, which gives the token."""

import os
import sys
import time
from urllib.parse import urlsplit

import pg8000.native

part, token = int(sys.argv[1]), int(os.environ["LOCKKIT_TOKEN"])
url = urlsplit(os.environ["DATABASE_URL"])
db = pg8000.native.Connection(url.username, host=url.hostname, port=url.port, database=url.path[1:])

# The fence is raised before anything is read: what an earlier consumer writes from here on is refused.
RAISE = "UPDATE consumer SET token = :token WHERE part = :part AND token <= :token RETURNING position"
NEXT = "SELECT position, cents FROM queue WHERE part = :part AND position > :after ORDER BY position LIMIT 1"
STORE = "UPDATE consumer SET position = :to WHERE part = :part AND token = :token"


def step() -> bool:
    """Applies the next message and stores the position, in one transaction. Whether there was one."""
    db.run("BEGIN")
    mine = db.run(RAISE, part=part, token=token)
    if not mine:
        db.run("ROLLBACK")
        sys.exit("a later consumer has begun")
    found = db.run(NEXT, part=part, after=mine[0][0])
    for position, cents in found:
        db.run("UPDATE account SET cents = cents + :cents WHERE part = :part", cents=cents, part=part)
        who = os.environ.get("HOST", str(os.getpid()))
        db.run("INSERT INTO applied VALUES (:position, :who)", position=position, who=who)
        time.sleep(float(os.environ.get("WORK", "0")))
        db.run(STORE, to=position, part=part, token=token)
    db.run("COMMIT")
    return bool(found)


while True:
    if not step():
        time.sleep(0.1)
