#!/usr/bin/env bash
# Gets a kernel of Debian for virtual machines with its modules, for the guests of tests, without installing it: it is to
# boot nothing on this machine. It is that of backports, because the one of Debian 12 has no CONFIG_NVME_HOST_AUTH; apt's own
# sources stay as they are.
set -euo pipefail
root=/var/lib/atoll-test-guest
if grep -qs '^CONFIG_NVME_HOST_AUTH=y' "$root"/boot/config-* &&
    [ -n "$(find "$root" -name 'nvme-tcp.ko*' 2>/dev/null | head -1)" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "run as root: $0" >&2; exit 1; }
    exec sudo "$0"
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"
mkdir -p lists/partial cache/archives/partial
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$key] http://deb.debian.org/debian bookworm-backports main" > sources.list
options=(-o "Dir::Etc::sourcelist=$temporary/sources.list" -o Dir::Etc::sourceparts=- -o APT::Sandbox::User=root
    -o "Dir::State::Lists=$temporary/lists" -o "Dir::Cache=$temporary/cache")
apt-get "${options[@]}" update -qq
package=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
[ -n "$package" ] || { echo "bookworm-backports has no linux-image-cloud-amd64" >&2; exit 1; }
echo "unpacking $package in $root"
apt-get "${options[@]}" download -qq "$package"
rm -rf "$root"
mkdir -p "$root"
dpkg-deb -x ./*.deb "$root"
