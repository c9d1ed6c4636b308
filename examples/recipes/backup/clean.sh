#!/bin/sh
# On any host: forget old snapshots, alone. Under this lock no restic of the fleet runs, so what is
# left of restic's own locks is of processes that died.
set -eu
exec lockkit run --wait 6h backup/repository -c '
    restic --quiet unlock --remove-all &&
    restic --quiet forget --keep-daily 7 --keep-last 2 --prune'
