#!/usr/bin/env python3
"""A plain file, written once with random bytes, on which fio shows what the disk can do at all.

  up        makes and fills it; the last line of its output is JSON: where it is
  down      removes it and its directory
"""
import argparse, json, pathlib, subprocess, sys

EXAMPLES = """examples:
  crates/lab/tools/raw_file_driver.py up --dir /mnt/nvme/raw --size 1G
  crates/lab/tools/raw_file_driver.py down --dir /mnt/nvme/raw

exit codes: 0 done, 1 failed (stderr says why), 2 wrong arguments"""
NAME = "raw"


class Failure(Exception):
    """What went wrong, why, and what to do."""


def size_bytes(text):
    """10G, 512M or bytes."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    digits, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    if not digits.isdigit() or int(digits) == 0 or (int(digits) << shift) % (1 << 22):
        raise argparse.ArgumentTypeError(f"'{text}' is not a size in whole 4 MiB: write bytes, or a number with M, G or T")
    return int(digits) << shift


def run(*command):
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise Failure(f"{command[0]} cannot be started ({error}); 'apt install fio'")
    if ended.returncode != 0:
        raise Failure(f"{command[0]} failed with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[-2000:]}")
    return ended.stdout.strip()


def up(arguments):
    directory = arguments.dir.resolve()
    path, version = directory / NAME, run("fio", "--version")
    if path.exists():
        raise Failure(f"{path} exists; remove it with 'down --dir {directory}', or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    run("fio", "--name=fill", f"--filename={path}", f"--size={arguments.size}", "--rw=write", "--bs=4M", "--iodepth=4",
        "--ioengine=io_uring", "--direct=1", "--end_fsync=1", "--refill_buffers", "--output-format=json")
    return {"title": "fio on a plain file", "version": version, "servers": {},
            "protections": "one copy, no checksums, not encrypted, every write durable (O_DSYNC)",
            "fio_file": {"path": str(path), "size_bytes": arguments.size}}


def down(arguments):
    directory = arguments.dir.resolve()
    if directory.exists():
        (directory / NAME).unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError as error:
            raise Failure(f"{directory} holds something else and stays: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("up", help="make the file")
    remove = commands.add_parser("down", help="remove it")
    for command in (make, remove):
        command.add_argument("--dir", type=pathlib.Path, required=True, help="where it is: on the disk that is to be measured")
    make.add_argument("--size", type=size_bytes, default="1G", help="default: %(default)s")
    arguments = parser.parse_args()
    if arguments.command == "down":
        return down(arguments)
    print(json.dumps(up(arguments)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr, flush=True)
        sys.exit(1)
