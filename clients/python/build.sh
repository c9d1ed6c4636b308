#!/bin/sh
# Builds the wheel into dist/, without network: needs python3-build, python3-setuptools and
# python3-wheel of Debian. PYTHON names another interpreter than /usr/bin/python3.
set -eu
cd "$(dirname "$0")"
rm -rf build dist src/*.egg-info
"${PYTHON:-/usr/bin/python3}" -m build --wheel --no-isolation --outdir dist . >&2
rm -rf build src/*.egg-info
# What is imported from the wheel is the package, with its types.
for wheel in dist/*.whl; do
    PYTHONPATH="$wheel" "${PYTHON:-/usr/bin/python3}" -c 'import lockkit, lockkit.aio; lockkit.connect("http://localhost")'
    "${PYTHON:-/usr/bin/python3}" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).getinfo("lockkit/py.typed")' "$wheel"
    echo "$wheel"
done
