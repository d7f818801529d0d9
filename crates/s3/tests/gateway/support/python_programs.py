"""Runs Python programs that use boto3, each in a fork of this process, which has loaded it: to load it takes longer
than most programs do.

It prints the path of the Unix socket at which it listens until its standard input ends. Who connects sends one line,
{"program": [PATH, ARGUMENT ...], "environment": {NAME: VALUE}}, and gets what the program prints, a zero byte, and the
exit status in decimal.
"""

import json
import os
import pathlib
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback

import boto3


def run(program, environment):
    """Exit status of a program that runs as if it were the main one."""
    os.environ.update(environment)
    sys.argv = program
    sys.path[0] = str(pathlib.Path(program[0]).parent)
    try:
        runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def answer(connection):
    with connection.makefile("rb") as lines:
        asked = json.loads(lines.readline())
    for descriptor in 1, 2:
        os.dup2(connection.fileno(), descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = run(asked["program"], asked["environment"])
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(f"\0{status}".encode())
    # Not through what this process would do at its end.
    os._exit(0)


def serve(path):
    # So that forks find what a client needs, too.
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        print(path, flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
            connection.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        serve(f"{directory}/socket")
