#!/usr/bin/env bash
# Gets Debian's kernel for virtual machines with its modules, for the guests of tests, without installing it: it is to
# boot nothing on this machine.
set -euo pipefail
root=/var/lib/atoll-test-guest
[ -n "$(find "$root" -name 'nvme-tcp.ko*' 2>/dev/null | head -1)" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "run as root: $0" >&2; exit 1; }
    exec sudo "$0"
fi
package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
[ -n "$package" ] || { echo "apt-cache knows no linux-image-cloud-amd64; run: apt-get update" >&2; exit 1; }
echo "unpacking $package in $root"
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"
apt-get download -qq -o APT::Sandbox::User=root "$package"
mkdir -p "$root"
dpkg-deb -x ./*.deb "$root"
