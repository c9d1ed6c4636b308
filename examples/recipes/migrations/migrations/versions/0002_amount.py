"""An amount for each invoice. It takes a while, as migrations of large tables do."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE invoice ADD COLUMN cents BIGINT NOT NULL DEFAULT 0")
    op.execute("SELECT pg_sleep(1)")
    op.execute("UPDATE invoice SET cents = cents + 100")
