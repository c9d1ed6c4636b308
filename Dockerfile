# The static command alone: `docker build -f Dockerfile FOLDER`, with an unpacked release in FOLDER.
FROM scratch
COPY lockkit /lockkit
ENTRYPOINT ["/lockkit"]
