"""A Celery application with one job each second. `beat` sends it, workers run it."""

import os

from celery import Celery

app = Celery("jobs", broker=os.environ["BROKER_URL"])
app.conf.beat_schedule = {"count": {"task": "jobs.count", "schedule": 1.0}}
app.conf.beat_max_loop_interval = 1
app.conf.broker_connection_retry_on_startup = True


@app.task(ignore_result=True)
def count() -> None:
    print("counted", flush=True)
