"""ext4 without the kernel, so that no privileges are needed: e2fsprogs change a copy of what an image holds, and the
changed blocks are written to the image in the order in which the kernel would write them."""

import os
import random

from lib.load import CountedLoad
from lib.verdicts import intact

BLOCK = 4096
FILES_MAX = 20


class Ext4Load(CountedLoad):
    """A thread that writes one file after the other and removes old ones. A file is acknowledged when the commit block
    of its transaction is: what comes later only brings what the journal has to its place."""

    def __init__(self, scenario, connection, size_bytes):
        self.scenario, self.connection = scenario, connection
        self.copy, self.next = scenario.directory / "ext4.raw", scenario.directory / "ext4-next.raw"
        super().__init__(["file"], 1)
        self.rng, self.pending = random.Random(11), []
        with open(self.copy, "wb") as file:
            file.truncate(size_bytes)
        self.run("mke2fs", "-q", "-F", "-t", "ext4", "-b", BLOCK, "-J", "size=4", self.copy)
        self.journal = int(self.debugfs(self.copy, "bmap <8> 0"))
        self.send(blocks_of(self.copy).items())

    def __exit__(self, *_):
        super().__exit__()
        self.connection.close()

    def _run(self, _):
        try:
            while not self.stopping:
                self.write_file(self.acked["file"] + 1)
        except Exception as error:
            self.errors.append(error)

    def content(self, number):
        rng = random.Random(f"ext4/{number}")
        return rng.randbytes(rng.choice((100, 5000, 60_000, 250_000)))

    def files(self, number):
        """The files that there are after so many: names and contents."""
        return {f"f{one}": self.content(one) for one in range(max(1, number - FILES_MAX + 1), number + 1)}

    def write_file(self, number):
        source = self.scenario.directory / "ext4-file"
        source.write_bytes(self.content(number))
        self.run("cp", "--sparse=always", self.copy, self.next)
        commands = [f"write {source} f{number}"] + [f"rm f{number - FILES_MAX}"] * (number > FILES_MAX)
        # As while it is mounted: the journal counts.
        self.debugfs(self.next, *commands, "feature needs_recovery")
        changed = changes(blocks_of(self.copy), blocks_of(self.next))
        of_file = {int(block) for block in self.debugfs(self.next, f"blocks f{number}").split()}
        data = {block: content for block, content in changed.items() if block in of_file}
        metadata = {block: content for block, content in changed.items() if block not in of_file}
        transaction = self.transaction(data, metadata)
        self.begun["file"] = number
        # What the last transaction has changed goes to its place only now, so that there is always one to replay.
        self.send([*data.items(), *self.pending, *transaction])
        self.ack("file", number)
        self.pending = self.replayed(metadata)

    def transaction(self, data, metadata):
        """The blocks of the journal that have a transaction, the commit block last."""
        with open(self.copy, "r+b") as file:
            for block, content in data.items():
                os.pwrite(file.fileno(), content, block * BLOCK)
        before = blocks_of(self.copy)
        payload = self.scenario.directory / "ext4-payload"
        payload.write_bytes(b"".join(metadata.values()))
        listed = ",".join(map(str, metadata))
        self.debugfs(self.copy, "journal_open -c -v 3", f"journal_write -b {listed} {payload}", "journal_close")
        return sorted(changes(before, blocks_of(self.copy)).items())

    def replayed(self, metadata):
        """What is to follow: the blocks at their places, in any order, and then the word that the journal is empty."""
        self.run("e2fsck", "-f", "-y", "-E", "journal_only", self.copy, ok=(0, 1))
        blocks = blocks_of(self.copy)
        intact(all(blocks[block] == content for block, content in metadata.items() if block != 0), "not replayed")
        return [*self.rng.sample(sorted(metadata.items()), len(metadata)), (self.journal, blocks[self.journal])]

    def send(self, blocks):
        for block, content in blocks:
            self.connection.write(block * BLOCK, content)

    def debugfs(self, path, *commands):
        """The output of commands, without the commands. debugfs itself says nothing in its exit code."""
        script = self.scenario.directory / "ext4-commands"
        script.write_text("\n".join(commands) + "\n")
        done = self.run("debugfs", "-w", "-f", script, path)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("debugfs 1.")]
        assert not errors, f"debugfs {commands}: {errors}"
        return "\n".join(line for line in done.stdout.splitlines() if not line.startswith("debugfs: "))

    def run(self, *command, **options):
        return self.scenario.run(*command, **options)


def changes(before, after):
    return {block: content for block, content in after.items() if content != before.get(block)}


def blocks_of(path):
    """The blocks of a sparse file that are no holes."""
    found = {}
    with open(path, "rb") as file:
        end, size = 0, os.fstat(file.fileno()).st_size
        while True:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:
                return found
            end = min(os.lseek(file.fileno(), start, os.SEEK_HOLE), size)
            data = os.pread(file.fileno(), end - start, start)
            for at in range(0, len(data), BLOCK):
                found[(start + at) // BLOCK] = data[at : at + BLOCK]
