#!/bin/sh
# Started on every host: `beat` runs on the one that leads, and on another when that one is gone.
exec lockkit elect --value "$(uname -n)" celery/beat -- \
    python3 -m celery --app jobs beat --pidfile= --schedule "${STATE_DIRECTORY:-.}/beat"
