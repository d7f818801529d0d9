#!/usr/bin/env bash
# Builds soft-iWARP (siw.ko) for the kernel of guests that has soft-RoCE. Debian's kernels leave it out
# (CONFIG_RDMA_SIW), but have its source and all that it needs. Nothing is installed. One operation is added, without
# which the removal of a device waits until processes that use it have ended: kernels take real adapters away from them.
# usage: guest_siw.sh DIRECTORY (where tools/guest_kernel.sh has unpacked the kernel)
set -euo pipefail
root=$1
modules=$(dirname "$(find "$root/lib/modules" -path '*/sw/rxe/rdma_rxe.ko' | sort | tail -1)")/../siw
release=$(basename "$(echo "${modules#"$root/lib/modules/"}" | cut -d / -f 1)")
version=$(echo "$release" | cut -d . -f 1,2)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
cd "$temporary"

packages=("linux-headers-$release" "linux-headers-${release%-*}-common" "linux-kbuild-$version" "linux-source-$version")
apt-get -o APT::Sandbox::User=root download -qq "${packages[@]}" || {
    echo "apt has no ${packages[0]}: run 'apt-get update', and remove $root if its kernel is older than apt's" >&2
    exit 1
}
echo "building siw for $release"
for package in linux-headers-*.deb linux-kbuild-*.deb; do
    dpkg-deb -x "$package" .
done
dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$version.tar.xz" |
    tar -xJ --strip-components=4 "linux-source-$version/drivers/infiniband/sw/siw"
sed -i "s|/usr/src|$PWD/usr/src|" "usr/src/linux-headers-$release/Makefile"
sed -i -e 's|^static const struct ib_device_ops siw_device_ops = {|static void siw_let_go(struct ib_ucontext *context) {}\n&|' \
    -e 's|^\t\.dealloc_pd = siw_dealloc_pd,|&\n\t.disassociate_ucontext = siw_let_go,|' siw/siw_main.c
make -s -C "usr/src/linux-headers-$release" M="$PWD/siw" CONFIG_RDMA_SIW=m modules
strip -g siw/siw.ko
mkdir -p "$modules"
cp siw/siw.ko "$modules"
