#!/usr/bin/env bash
# Installs Debian packages: scripts/debian_packages.sh PACKAGE...
# Exit code 2, with a line that says why, where this user or this machine cannot.
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
# Without fresh lists too: they may be there already, and the package cached.
apt update || true
apt install -y --no-install-recommends "$@" || { tail -n 3 "$log" >&2; cannot "the packages cannot be had"; }
