"""Takes a lock at a server of Redis as a neighbour of lockkit does, for the tests.

neighbour.py STYLE PORT NAME hold MS        takes the lock, says `held`, and gives it back when its input
                                            ends; then says `released`, or `lost`
neighbour.py STYLE PORT NAME try            says `held` or `busy`, and ends
neighbour.py STYLE PORT NAME storm MS       takes and gives back until it is killed, and writes to the file
                                            $LOCKKIT_NEIGHBOURS_FILE when it held

STYLE: set-nx is redis-py's own `Lock`; redisson does what Redisson's `RLock` sends, with redis-py's
connection. MS: its lease.
"""

import os
import random
import sys
import threading
import time
import uuid

import redis

TAKE = """
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return redis.call('pttl', KEYS[1])
end
redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return false
"""
GIVE = """
if redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return false end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""


class LockLost(Exception):
    pass


class RLock:
    """What `RLock` keeps in Redis: `tryLockInnerAsync`, `unlockInnerAsync`, and the channel of its waiters."""

    def __init__(self, client, name, lease):
        self.client, self.name, self.ms = client, name, int(lease * 1000)
        self.owner = f"{uuid.uuid4()}:{threading.get_ident()}"
        prefix = "redisson_lock__channel"
        self.channel = f"{prefix}:{name}" if "{" in name else f"{prefix}:{{{name}}}"

    def acquire(self, blocking=True):
        left = self.client.eval(TAKE, 1, self.name, self.ms, self.owner)
        if left is None or not blocking:
            return left is None
        # As Redisson waits: for the message of a release, or for the rest of the lease.
        with self.client.pubsub(ignore_subscribe_messages=True) as waiting:
            waiting.subscribe(self.channel)
            waiting.get_message(timeout=1)
            while True:
                left = self.client.eval(TAKE, 1, self.name, self.ms, self.owner)
                if left is None:
                    return True
                woken = waiting.get_message(timeout=left / 1000)
                if woken is not None:
                    assert woken["data"] == b"0", woken

    def release(self):
        args = (self.name, self.channel, 0, self.ms, self.owner)
        if self.client.eval(GIVE, 2, *args) is None:
            raise LockLost


def say(word):
    print(word, flush=True)


def storm(lock, lease):
    """Lines of `enter T UNTIL` and `leave T`, in ns of the machine's monotonic clock, and `wait NS`."""
    out = os.open(os.environ["LOCKKIT_NEIGHBOURS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    wanted = time.monotonic_ns()
    while True:
        try:
            sent = time.monotonic_ns()
            if not lock.acquire(blocking=False):
                time.sleep(0.02)
                continue
            now, until = time.monotonic_ns(), sent + int(lease * 1e9)
            os.write(out, f"wait {now - wanted}\nenter {now} {until}\n".encode())
            time.sleep(random.choice([0.002, 0.01, 0.03, lease / 2]))
            os.write(out, f"leave {time.monotonic_ns()}\n".encode())
            lock.release()
        except (redis.exceptions.RedisError, LockLost):
            pass  # its lease ended, or its connection
        wanted = time.monotonic_ns()
        time.sleep(random.choice([0, 0.005, 0.02]))


style, port, name, work = sys.argv[1:5]
lease = float(sys.argv[5]) / 1000 if len(sys.argv) > 5 else 30
client = redis.Redis(port=int(port), socket_timeout=5)
lock = client.lock(name, timeout=lease) if style == "set-nx" else RLock(client, name, lease)
if work == "hold":
    lock.acquire()
    say("held")
    sys.stdin.read()
    try:
        lock.release()
        say("released")
    except (redis.exceptions.LockError, LockLost):
        say("lost")
elif work == "try":
    say("held" if lock.acquire(blocking=False) else "busy")
else:
    storm(lock, lease)
