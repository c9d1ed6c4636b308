#!/bin/sh
# debian.sh FOLDER VERSION ARCHITECTURE OUT: packs an unpacked archive of `cargo xtask dist` as a Debian
# package in the folder OUT, and prints its path. DEPENDS names what a binary that is not static needs.
# The same bytes for the same content: SOURCE_DATE_EPOCH is the time of all files, that of the last
# commit unless set.
set -eu
folder=$1 version=$2 architecture=$3 out=$4
here=$(cd "$(dirname "$0")/.." && pwd)
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct || date +%s)}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
doc=$root/usr/share/doc/lockkit man=$root/usr/share/man/man1

put() { install -D -m "$1" "$2" "$root/$3"; }
put 755 "$folder/lockkit" usr/bin/lockkit
put 644 "$folder/completions/lockkit.bash" usr/share/bash-completion/completions/lockkit
put 644 "$folder/completions/_lockkit" usr/share/zsh/vendor-completions/_lockkit
put 644 "$folder/completions/lockkit.fish" usr/share/fish/vendor_completions.d/lockkit.fish
for page in "$folder"/man/*.1; do put 644 "$page" "usr/share/man/man1/${page##*/}"; done
put 644 "$folder/README.md" usr/share/doc/lockkit/README.md
gzip -9 --no-name "$man"/*.1

{
    echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
    echo 'Source: https://github.com/lockkit/lockkit'
    printf '\nFiles: *\nCopyright: The lockkit authors\nLicense: MIT or Apache-2.0\n'
    printf '\nLicense: MIT\n'
    sed -e 's/^$/./' -e 's/^/ /' "$here/LICENSE-MIT"
    printf '\nLicense: Apache-2.0\n On Debian, the text is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$doc/copyright"
{
    printf 'lockkit (%s) stable; urgency=medium\n\n' "$version"
    printf '  * Release %s: https://github.com/lockkit/lockkit/blob/main/CHANGELOG.md\n\n' "$version"
    printf ' -- The lockkit authors <lockkit@users.noreply.github.com>  %s\n' "$(LC_ALL=C date -u -R -d "@$epoch")"
} | gzip -9 --no-name >"$doc/changelog.gz"
chmod 644 "$doc/copyright" "$doc/changelog.gz"

size=$(du -s -k "$root/usr" | cut -f 1)
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: lockkit
Version: $version
Architecture: $architecture
Maintainer: The lockkit authors <lockkit@users.noreply.github.com>
Installed-Size: $size
Section: admin
Priority: optional
Homepage: https://github.com/lockkit/lockkit
Description: run commands under distributed locks with fencing tokens
 lockkit runs a command while it holds a lock that is shared by many hosts,
 kept in Redis, PostgreSQL, MySQL, MariaDB, ZooKeeper, SQLite or a lock
 service. Each lock has a fencing token, by which what it protects can refuse
 a holder that lost the lock without noticing.
END
[ -z "${DEPENDS:-}" ] || sed -i "/^Architecture/a Depends: $DEPENDS" "$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
chmod 644 "$root/DEBIAN/control" "$root/DEBIAN/md5sums"
find "$root" -type d -exec chmod 755 {} +
find "$root" -exec touch --no-dereference --date="@$epoch" {} +
package=$out/lockkit_${version}_$architecture.deb
mkdir -p "$out"
SOURCE_DATE_EPOCH=$epoch dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" >&2
echo "$package"
