# Installs Debian packages, and lets none of them start a server. Run as root.
#
# $@: the packages. A server that a package starts would take a port, and stay.
# Packages ask policy-rc.d first, which forbids it by 101; afterwards the file is
# what it was before.
set -u
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
kept=$(mktemp -d) || exit 1

restore() {
    rm -f "$policy"
    if [ -e "$kept/policy" ] || [ -L "$kept/policy" ]; then
        cp -a "$kept/policy" "$policy"
    fi
    rm -rf "$kept"
}

if [ -e "$policy" ] || [ -L "$policy" ]; then
    cp -a "$policy" "$kept/policy" || exit 1
fi
trap restore EXIT
trap 'exit 130' HUP INT TERM
rm -f "$policy"
printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" || exit 1

install() {
    apt-get install -y --no-install-recommends "$@"
}

# A machine that never asked, or asked long ago, knows none or too old packages.
install "$@" || { apt-get update && install "$@"; }
