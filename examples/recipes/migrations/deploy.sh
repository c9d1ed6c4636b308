#!/bin/sh
# Started on every host of a release: one migrates, the others wait for the result; then each serves.
# RELEASE names the release; the words of this command are the server.
set -eu
lockkit run --wait 10m --once "migrate/$RELEASE" --note "$(uname -n)" -- python3 -m alembic upgrade head
exec "$@"
