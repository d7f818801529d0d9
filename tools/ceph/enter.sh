#!/usr/bin/env bash
# Runs COMMAND in the chroot ROOT, with the files of the cluster in DIR where Ceph looks for them.
#
#     enter.sh ROOT DIR COMMAND [ARGUMENT...]
#
# What is mounted for it is in a mount namespace of its own and ends with it: there is never anything to unmount.
# The command keeps this process's id, so that its CPU can be read from /proc.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,4s/^#\( \|$\)//p' "$0" >&2
    exit 2
fi
root=$1 directory=$2
if [ -z "${ENTERED_NAMESPACE:-}" ]; then
    ENTERED_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi
unset ENTERED_NAMESPACE
shift 2

# A disk that calls itself rotational and is not (virtual disks do) is shown to Ceph as what it is: the file has a 0.
if [ -f "$directory/rotational" ]; then
    source=$(findmnt --noheadings --nofsroot --output SOURCE --target "$directory")
    for disk in $(lsblk --inverse --noheadings --list --output KNAME "$source" 2>/dev/null); do
        [ -f "/sys/block/$disk/queue/rotational" ] && mount --bind "$directory/rotational" "/sys/block/$disk/queue/rotational"
    done
fi
for place in dev proc sys; do
    mount --rbind "/$place" "$root/$place"
done
mkdir -p "$root/run/ceph"
for place in etc/ceph var/lib/ceph var/log/ceph run/ceph; do
    mount --bind "$directory/$place" "$root/$place"
done
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
exec chroot "$root" "$@"
