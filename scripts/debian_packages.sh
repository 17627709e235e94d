#!/usr/bin/env bash
# Installs Debian packages: scripts/debian_packages.sh PACKAGE...
# If this user or this machine cannot install them, exits with 2 and prints the reason.
set -uo pipefail

cannot() {
    echo "$1; needed: apt-get install $packages" >&2
    exit 2
}

packages="$*"
command -v apt-get >/dev/null || cannot "this machine has no apt-get"
as_root=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || cannot "only root may install packages here"
    as_root=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { timeout 180 "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" </dev/null >>"$log" 2>&1; }
# Go on if the update fails: the lists may exist already, and the packages may be cached.
apt update || true
apt install -y --no-install-recommends "$@" || { tail -n 3 "$log" >&2; cannot "apt-get could not install the packages"; }
