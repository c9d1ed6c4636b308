#!/bin/sh
# On every host that may write the SQLite file: the one that leads restores it, replicates it and
# runs the program. Two Litestreams that write to one replica would destroy it.
set -eu
exec lockkit elect --value "$(uname -n)" litestream/shop -c '
    litestream restore -if-replica-exists -o shop.db "$REPLICA" &&
    exec litestream replicate -exec "serve shop.db" shop.db "$REPLICA"'
