"""Damage to the files of the embedded cluster state: one of the two costs nothing, both are said at once."""

import random

import pytest
from lib.operator import Small, refused_start

FILES = ("state/state.redb", "state/state.copy.redb")


@pytest.fixture(scope="module")
def small(scenario):
    return Small(scenario)


def flip_bits(path, seed):
    """A bit of each page is another: some are in what the server reads."""
    content = bytearray(path.read_bytes())
    rng = random.Random(seed)
    for page in range(0, len(content), 4096):
        content[page + rng.randrange(min(4096, len(content) - page))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("is_killed", [False, True])
def test_damage_to_one_file_costs_nothing(small, name, is_killed):
    """Flipped bits in either file: the next start has everything, and both files are whole again."""
    small.cluster.cli("flag", "set", "noscrub")
    if is_killed:
        small.cluster.kill_all()
    else:
        small.cluster.down()
    flip_bits(small.path(name), name)
    small.cluster.up()
    assert "noscrub" in small.cluster.cli("flag", "ls").stdout, "what was acknowledged last is not there"
    small.check()
    small.cluster.cli("flag", "unset", "noscrub")


def test_damage_to_both_files_is_said_at_once(small):
    """'atoll up' does not wait for a server that cannot start: it says what its log says, and what to do."""
    file = small.cluster.scenario.directory / "state.snapshot"
    small.cluster.cli("state", "snapshot", file)
    small.cluster.down()
    for name in FILES:
        small.path(name).write_bytes(bytes(100_000))
    refused_start(small.cluster, "state.redb is damaged", "so is its copy", "atoll state restore --replace")
    small.cluster.cli("state", "restore", "--replace", file)
    small.cluster.up()
    small.check()
