#!/bin/sh
# Started on every host, for each partition: one host consumes it, another goes on when that one is gone.
exec lockkit elect --value "$(uname -n)" "consumer/$1" -- python3 consume.py "$1"
