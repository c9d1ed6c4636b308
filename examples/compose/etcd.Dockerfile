# Debian's package is 3.5.16; lockkit asks for 3.4.31, 3.5.13 or newer where a leader may freeze.
FROM debian:trixie-slim
RUN apt-get update && apt-get install --yes --no-install-recommends etcd-server etcd-client
