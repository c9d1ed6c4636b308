"""Locks a path of ZooKeeper with kazoo, for the tests of neighbours.

lock.py HOSTS PATH STYLE hold         takes the lock, says `held`, and gives it back
                                      when its input ends; then says `released`
lock.py HOSTS PATH STYLE try          says `held` or `busy`, and ends
lock.py HOSTS PATH STYLE count FILE N adds one to the number in a file, N times, each
                                      time under the lock

STYLE: kazoo for its own Lock; curator for the same with nodes that are named as
those of Curator's InterProcessMutex.
"""

import sys
import uuid

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock


class LikeCurator(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]

    def __init__(self, client, path):
        super().__init__(client, path)
        self.prefix = "_c_" + str(uuid.uuid4()) + self._NODE_NAME
        self.create_path = self.path + "/" + self.prefix


def say(word):
    print(word, flush=True)


def count(lock, file, times):
    for _ in range(times):
        with lock:
            with open(file) as number:
                value = int(number.read())
            with open(file, "w") as number:
                number.write(str(value + 1))


hosts, path, style, work = sys.argv[1:5]
client = KazooClient(hosts=hosts, timeout=30)
client.start(timeout=60)
lock = {"kazoo": Lock, "curator": LikeCurator}[style](client, path)
if work == "hold":
    lock.acquire()
    say("held")
    sys.stdin.read()
    lock.release()
    say("released")
elif work == "try":
    say("held" if lock.acquire(blocking=False) else "busy")
else:
    count(lock, sys.argv[5], int(sys.argv[6]))
client.stop()
