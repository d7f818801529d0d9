#!/usr/bin/env python3
"""A cluster of another release of Atoll on this machine, to be measured beside this one.

  up        starts it; the last line of its output is JSON: its data directory, its binary and its processes
  down      ends it and removes its directory
"""
import argparse, json, os, pathlib, shlex, shutil, socket, subprocess, sys

VARIABLE = "ATOLL_BEFORE"
EXAMPLES = """examples:
  crates/lab/tools/release_driver.py up --dir /mnt/nvme/before --binary ~/releases/atoll-1 --osds 3 --osd-size 6G
  ATOLL_BEFORE=~/releases/atoll-1 atoll bench run data-path-compared
  crates/lab/tools/release_driver.py down --dir /mnt/nvme/before

Variables such as ATOLL_GARBAGE_GRACE_SECONDS reach the cluster from the environment of 'up'.
exit codes: 0 done, 1 failed (stderr says why), 2 wrong arguments"""
# Inside the cluster's directory: which program ends it, and the data directory.
BINARY, DATA = "binary.json", "data"
SECONDS_TO_START, SECONDS_TO_END = 180, 120


class Failure(Exception):
    """What went wrong, why, and what to do."""


def say(message):
    print(message, file=sys.stderr, flush=True)


def run(command, seconds):
    """What a command printed; raises Failure with its own words."""
    shown = " ".join(map(str, command))
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    except OSError as error:
        raise Failure(f"cannot start '{shown}': {error}")
    except subprocess.TimeoutExpired:
        raise Failure(f"'{shown}' has not ended after {seconds} s; its logs are in the data directory")
    if ended.returncode != 0:
        raise Failure(f"'{shown}' failed with {ended.returncode}: {ended.stderr.strip()[-2000:]}")
    return ended.stdout


def find_binary(argument):
    named = argument or os.environ.get(VARIABLE)
    if not named:
        raise Failure(f"which release? Name its binary with --binary PATH, or in the variable {VARIABLE}")
    path = pathlib.Path(named).expanduser().resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise Failure(f"{path} is not a program; --binary or {VARIABLE} must name the atoll of the other release")
    return path


def free_ports(number):
    """Ports that nobody uses now, below those that the kernel gives to outgoing connections."""
    ports = []
    for port in range(30_000, 32_000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == number:
            return ports
    raise Failure("no port from 30000 to 31999 of this host is free")


def servers(data):
    """The cluster's processes by role, from the file in which its supervisor keeps them."""
    record = json.loads((data / "processes.json").read_text())
    roles = {"supervisor": [record["supervisor"]]}
    for child in record["children"]:
        if child["pid"] is not None:
            # osd.0, osd.1, ... have one role.
            roles.setdefault(child["name"].split(".")[0], []).append(child["pid"])
    return roles


def up(arguments):
    binary, directory = find_binary(arguments.binary), arguments.dir.resolve()
    if directory.exists() and any(directory.iterdir()):
        raise Failure(f"{directory} is not empty; end what is in it with 'down --dir {directory}', or name another")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / BINARY).write_text(json.dumps(str(binary)))
    data = directory / DATA
    s3, s3_tls, nbd = (f"127.0.0.1:{port}" for port in free_ports(3))
    command = [binary, "up", "--detach", "--data", data, "--s3-listen", s3, "--s3-tls-listen", s3_tls, "--nbd-listen", nbd]
    command += ["--osds", str(arguments.osds), "--osd-size", arguments.osd_size, *shlex.split(arguments.more)]
    run(command, SECONDS_TO_START)
    version = run([binary, "--version"], 10).strip()
    return {"title": f"{version} ({binary.name}), {arguments.osds} OSDs", "version": version.split()[-1], "protections": "",
            "servers": servers(data), "atoll": {"data": str(data), "binary": str(binary)}}


def down(arguments):
    directory = arguments.dir.resolve()
    record = directory / BINARY
    if not directory.exists():
        return
    if not record.exists():
        if any(directory.iterdir()):
            raise Failure(f"{directory} was not made by this driver ({BINARY} is not in it); nothing was removed")
        return directory.rmdir()
    if (directory / DATA).exists():
        try:
            run([json.loads(record.read_text()), "down", "--data", directory / DATA], SECONDS_TO_END)
        except Failure as failure:
            # One that never came up is not running either; one that is must not lose its files.
            if any_runs(directory / DATA):
                raise
            say(f"it was not running: {failure}")
    shutil.rmtree(directory)


def any_runs(data):
    try:
        processes = [pid for pids in servers(data).values() for pid in pids]
    except (OSError, ValueError, KeyError):
        return False
    return any(pathlib.Path("/proc", str(pid)).exists() for pid in processes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start a cluster")
    end = commands.add_parser("down", help="end a cluster and remove its directory")
    for command in (start, end):
        command.add_argument("--dir", type=pathlib.Path, required=True, help="everything of this cluster, the OSDs' devices too")
    start.add_argument("--binary", help=f"the other release's atoll (default: the variable {VARIABLE})")
    start.add_argument("--osds", type=int, choices=range(1, 65), metavar="N", default=3)
    start.add_argument("--osd-size", default="10G", help="of each OSD's device, a sparse file (default: %(default)s)")
    start.add_argument("--more", default="", help="further options of its 'atoll up', as one text, such as '--transport tcp'")
    arguments = parser.parse_args()
    if arguments.command == "down":
        return down(arguments)
    print(json.dumps(up(arguments)), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        say(f"error: {failure}")
        sys.exit(1)
