# Keeps a lab's folder: makes it, and ends and removes everything in it once its
# standard input closes, that is, when the program that runs the lab lets go of
# it or dies, however it dies. It may touch nothing outside of the folder.
#
# $1: the folder in which the lab's folder is made. Prints the path of that one.
# A line on standard input means that the end is an orderly one.
trap '' HUP INT TERM
folder=$(mktemp -d "$1/lockkit-lab.XXXXXX") || exit 1
# Without links in it: as the kernel names the folders that servers work in.
folder=$(cd "$folder" && pwd -P) && chmod 755 "$folder" && cd / || exit 1
echo "$folder"
read -r orderly

# A server belongs to the lab when it works in the lab's folder: process groups
# would miss PostgreSQL's backends, which start sessions of their own.
servers() {
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$folder/*" 2>/dev/null
}

end_servers() {
    # What `find` returns means nothing: processes end while it looks.
    while found=$(servers); [ -n "$found" ]; do
        for cwd in $found; do
            pid=${cwd#/proc/}
            kill -KILL "${pid%/cwd}" 2>/dev/null
        done
    done
}

end_servers
# A program that died while it started a server leaves a process that has not
# moved into the folder yet.
if [ -z "$orderly" ]; then
    sleep 0.2
    end_servers
fi
# PostgreSQL, when it is killed, leaves a segment of shared memory behind; its
# id stands in the seventh line of this file.
find "$folder" -name postmaster.pid 2>/dev/null | while read -r file; do
    id=$(sed -n '7s/^ *[0-9]* *\([0-9]*\) *$/\1/p' "$file")
    [ -n "$id" ] && ipcrm -m "$id" 2>/dev/null
done
rm -rf "$folder"
