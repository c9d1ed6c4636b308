"""An endpoint that may be called again after a lost answer: one payment for each idempotency key.

Any number of processes on any number of hosts serve it."""

import hashlib
import json
import os
import sqlite3
import time
from contextlib import asynccontextmanager
from typing import Annotated, Any

import lockkit
from fastapi import FastAPI, Header, HTTPException
from lockkit import aio
from pydantic import BaseModel

db = sqlite3.connect(os.environ["DATABASE"], timeout=30, isolation_level=None, check_same_thread=False)
db.execute("CREATE TABLE IF NOT EXISTS payment (key TEXT PRIMARY KEY, cents INT, payee TEXT, token INT)")


class Payment(BaseModel):
    cents: int
    payee: str


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with aio.connect(os.environ["LOCKKIT_URL"], ttl=float(os.environ.get("LEASE", "30"))) as locks:
        app.state.locks = locks
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/payments")
async def pay(
    payment: Payment, idempotency_key: Annotated[str, Header(min_length=8, max_length=200)]
) -> dict[str, Any]:
    body = hashlib.sha256(payment.model_dump_json().encode()).hexdigest()

    async def work(lock: aio.Guard) -> str:
        # A process that died after this and before its answer was kept: the row is there already.
        statement = "INSERT INTO payment VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        db.execute(statement, (idempotency_key, payment.cents, payment.payee, lock.token))
        if os.environ.get("DIE") == idempotency_key:
            os.kill(os.getpid(), 9)
        return json.dumps({"body": body, "answer": {"paid": payment.cents, "at": time.time()}})

    try:
        decision = await app.state.locks.once(f"payment/{idempotency_key}").run(work)
    except lockkit.LockLost:
        raise HTTPException(503, "please send it again", {"retry-after": "1"})
    kept = json.loads(decision.value)
    if kept["body"] != body:
        raise HTTPException(422, "this key was used for another payment")
    return kept["answer"]
