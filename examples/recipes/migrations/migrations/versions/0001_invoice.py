"""The table of invoices, with the first one in it."""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.execute("CREATE TABLE invoice (id BIGSERIAL PRIMARY KEY, state TEXT NOT NULL)")
    op.execute("INSERT INTO invoice (state) VALUES ('open')")
