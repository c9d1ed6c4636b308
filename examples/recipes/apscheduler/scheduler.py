"""A scheduler of APScheduler on every host, of which one runs its jobs: the one that leads."""

import os

import lockkit
from apscheduler.schedulers.background import BackgroundScheduler

locks = lockkit.connect(os.environ["LOCKKIT_URL"], ttl=float(os.environ.get("LEASE", "30")))
host = os.environ.get("HOST") or os.uname().nodename
runs = locks.register("scheduler/runs")


def job(lead: lockkit.Guard) -> None:
    entry = runs.get()
    count = int(entry.value) if entry else 0
    # Refused when this host does not lead any more, and once a later leader has written.
    runs.put(str(count + 1), expect=entry, lock=lead)
    print(f"run {count + 1} by {host}", flush=True)


while True:
    with locks.election("scheduler", value=host).campaign() as lead:
        scheduler = BackgroundScheduler()
        scheduler.add_job(job, "interval", [lead], seconds=float(os.environ.get("EVERY", "60")))
        scheduler.start()
        lead.lost.wait()
        scheduler.shutdown(wait=False)
