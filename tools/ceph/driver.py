#!/usr/bin/env python3
"""A Ceph Reef cluster on this machine, to be measured beside Atoll.

  install   Debian 13's Ceph into a chroot, once
  up        starts a cluster; the last line of its output is JSON: where it is, and which processes it is
  down      ends it and removes its directory
"""
import argparse, json, os, pathlib, sys

import installation
from installation import Failure

ROOT = pathlib.Path("/var/tmp/atoll-ceph-root")
EXAMPLES = """examples:
  tools/ceph/driver.py install
  tools/ceph/driver.py up --dir /mnt/nvme/ceph --osds 3 --osd-size 10G --rgw
  tools/ceph/driver.py down --dir /mnt/nvme/ceph

exit codes: 0 done, 1 failed (stderr says why), 2 wrong arguments"""


def say(message):
    print(message, file=sys.stderr, flush=True)


def size_bytes(text):
    """10G, 512M or bytes."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    digits, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    if not digits.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write bytes, or a number with K, M, G or T")
    return int(digits) << shift


def count(least, most):
    def parse(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return int(text)
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="install Debian 13's Ceph into a chroot, once")
    up = commands.add_parser("up", help="start a cluster")
    down = commands.add_parser("down", help="end a cluster and remove its directory")
    for command in (install, up):
        command.add_argument("--root", type=pathlib.Path, default=ROOT, help="the chroot (default: %(default)s)")
    install.add_argument("--mirror", help="of Debian's main archive (default: the one that this host's apt uses)")
    for command in (up, down):
        command.add_argument("--dir", type=pathlib.Path, required=True, help="everything of this cluster, the OSDs' devices too")
    up.add_argument("--osds", type=count(1, 64), default=3)
    up.add_argument("--osd-size", type=size_bytes, default="10G", help="of each OSD's device, a sparse file (default: %(default)s)")
    up.add_argument("--copies", type=count(1, 10), default=3)
    up.add_argument("--pg-num", type=count(1, 1024), default=32, help="of the pools with data (default: %(default)s)")
    up.add_argument("--frames", choices=["secure", "crc"], default="secure", help="protection of the messenger (default: %(default)s)")
    up.add_argument("--osd-memory", type=size_bytes, default="1G", help="osd_memory_target (default: %(default)s)")
    up.add_argument("--media", choices=["ssd", "detected"], default="ssd",
                    help="which of Ceph's defaults: those for flash, or what the disk says of itself, virtual ones often wrongly (default: %(default)s)")
    up.add_argument("--rgw", action="store_true", help="with an S3 gateway")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if os.geteuid() != 0:
        raise Failure("this needs root (mounts and chroot): run it with sudo")
    if arguments.command == "install":
        return installation.install(arguments.root.absolute(), arguments.mirror, say)
    import cluster
    directory = arguments.dir.resolve()
    if arguments.command == "down":
        return cluster.down(directory, say)
    print(json.dumps(cluster.up(arguments, arguments.root.resolve(), directory, say)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        say(f"error: {failure}")
        sys.exit(1)
