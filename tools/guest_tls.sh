#!/usr/bin/env bash
# Gets programs of newer Debians with all their libraries for guests of tests, without installing them: tlshd, which does
# the handshakes of TLS for the kernel and is not in Debian 12, nvme-cli, and keyctl. Debian 13's nvme-cli derives keys as
# libnvme before 1.16 does, and its GnuTLS has no keys of SHA-384. Debian 14's are newer, and its tlshd needs its kernel.
# apt's own sources stay as they are.
set -euo pipefail
root=/var/lib/atoll-test-guest
programs='ktls-utils nvme-cli keyutils'

has_all() {
    [ -x "$root/trixie/usr/sbin/tlshd" ] && [ -x "$root/forky/usr/sbin/tlshd" ] &&
        [ -n "$(find "$root/forky" -name 'nvme-tcp.ko*' 2>/dev/null | head -1)" ]
}

# get RELEASE PACKAGE...: unpacks packages and what they need.
get() {
    local new="$root/$1.new" work="$temporary/$1"
    mkdir -p "$work"/lists/partial "$work"/cache/archives/partial
    touch "$work/status"
    echo "deb [signed-by=$key] http://deb.debian.org/debian $1 main" > "$work/sources.list"
    local options=(-o APT::Sandbox::User=root -o Acquire::Languages=none
        -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::Lists=$work/lists"
        -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache")
    apt-get "${options[@]}" update -qq
    # With an empty status everything is missing.
    apt-get "${options[@]}" install -qq -y --no-install-recommends --download-only "${@:2}" >/dev/null
    echo "unpacking packages of Debian $1 in $root"
    rm -rf "$new"
    mkdir -p "$new"
    for package in "$work"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$new"
    done
    # Kernels lie as those of Debian 12 do.
    local modules
    for modules in "$new"/usr/lib/modules/*/; do
        [ -e "$modules/vmlinuz" ] || continue
        mkdir -p "$new/boot" "$new/lib/modules"
        mv "$modules/vmlinuz" "$new/boot/vmlinuz-$(basename "$modules")"
        mv "$modules/config" "$new/boot/config-$(basename "$modules")"
        mv "$modules" "$new/lib/modules/"
    done
    rm -rf "${root:?}/$1" "$new/usr/share"
    mv "$new" "$root/$1"
}

has_all && exit 0
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "run as root: $0" >&2; exit 1; }
    exec sudo "$0"
fi
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
key=/usr/share/keyrings/debian-archive-keyring.gpg
# shellcheck disable=SC2086
get trixie $programs
# shellcheck disable=SC2086
get forky $programs linux-image-cloud-amd64
