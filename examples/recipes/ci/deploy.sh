#!/bin/sh
# The step of every pipeline that deploys to production, in any repository and any CI system.
set -eu
exec lockkit run --wait 30m --max-hold 1h --note "$PIPELINE" deploy/production -- ./release.sh
