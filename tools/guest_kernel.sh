#!/usr/bin/env bash
# Gets Debian's kernels with their modules for the guests of tests, without installing them: they are to boot nothing
# on this machine. That for virtual machines has NVMe/TCP, and is of backports, because the one of Debian 12 has no
# CONFIG_NVME_HOST_AUTH; apt's own sources stay as they are. Soft-RoCE is in the other kernel only, of which this takes
# what guests load, and for which soft-iWARP is built.
set -euo pipefail
root=/var/lib/atoll-test-guest
modules='./lib/modules/*/kernel'

has() {
    [ -n "$(find "$root" -name "$1.ko*" 2>/dev/null | head -1)" ]
}

has_nvme_tcp() {
    grep -qs '^CONFIG_NVME_HOST_AUTH=y' "$root"/boot/config-* && has nvme-tcp
}

# get PACKAGE PATTERN...: unpacks the files of a kernel that match.
get() {
    local package
    package=$(apt-cache "${options[@]}" depends "$1" | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
    [ -n "$package" ] || { echo "apt-cache knows no $1; run: apt-get update" >&2; exit 1; }
    echo "unpacking $package in $root"
    mkdir -p "$root"
    rm -f "$temporary"/*.deb
    (cd "$temporary" && apt-get "${options[@]}" download -qq "$package")
    dpkg-deb --fsys-tarfile "$temporary"/*.deb | tar -x -C "$root" --wildcards "${@:2}"
}

has_nvme_tcp && has rdma_rxe && has siw && exit 0
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || { echo "run as root: $0" >&2; exit 1; }
    exec sudo "$0"
fi
builder=$(dirname "$0")/guest_siw.sh
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
options=(-o APT::Sandbox::User=root)
has rdma_rxe || get linux-image-amd64 './boot/vmlinuz-*' \
    "$modules"/{arch,crypto,lib,net,fs/configfs,fs/ext4,fs/jbd2,fs/mbcache.ko} \
    "$modules"/drivers/{virtio,infiniband,block/virtio_blk.ko,char/hw_random,net/'*.ko'}
has siw || "$builder" "$root"
if ! has_nvme_tcp; then
    mkdir -p "$temporary"/lists/partial "$temporary"/cache/archives/partial
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [signed-by=$key] http://deb.debian.org/debian bookworm-backports main" > "$temporary/sources.list"
    options+=(-o "Dir::Etc::sourcelist=$temporary/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::Lists=$temporary/lists" -o "Dir::Cache=$temporary/cache")
    apt-get "${options[@]}" update -qq
    get linux-image-cloud-amd64 './*'
fi
