"""Runs the migrations in one transaction that a later holder of the lock makes fail."""

import os

from alembic import context
from sqlalchemy import create_engine, make_url, text

FENCE = """
CREATE TABLE IF NOT EXISTS deploy_fence (one INT PRIMARY KEY CHECK (one = 1), token BIGINT NOT NULL)
"""
# The row stays locked until the commit, so a later holder that begins meanwhile waits here.
RAISE = """
INSERT INTO deploy_fence VALUES (1, :token)
ON CONFLICT (one) DO UPDATE SET token = :token WHERE deploy_fence.token <= :token
"""

url = make_url(os.environ["DATABASE_URL"]).set(drivername="postgresql+pg8000")
engine = create_engine(url)
with engine.begin() as fence:
    fence.execute(text(FENCE))
with engine.connect() as connection:
    context.configure(connection=connection, transactional_ddl=True)
    with context.begin_transaction():
        raised = connection.execute(text(RAISE), {"token": int(os.environ["LOCKKIT_TOKEN"])})
        if raised.rowcount == 0:
            raise SystemExit("a later holder of the lock has begun to migrate: nothing was changed")
        context.run_migrations()
