"""LUKS2 at rest: object names are in clear on plain devices and nowhere on encrypted ones; `cryptsetup` reads and
changes the headers; OSDs open with the right passphrase, key file or key service and say clearly why not."""

import concurrent.futures
import json
import stat

import pytest
from lib.cluster import GIB, MIB
from lib.search import search
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("cryptsetup")


BUCKET = "a-bucket-name-to-look-for"
KEY = "object-name-that-only-metadata-has/"
OBJECTS, OBJECT_BYTES = 1_200, 48 << 10
PASSPHRASE, NEW_PASSPHRASE = "the first line: a passphrase", "another passphrase"
KEY_FILE, NEW_KEY_FILE = b"\x00\xffall bytes\ncount\n", b"other\n\x00bytes"
QUICK = ["--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"]


class Encrypted:
    """A cluster of three OSDs on encrypted files: passphrase and WAL device, key file, key service and WAL device."""

    def __init__(self, scenario):
        self.scenario, self.cluster, self.disks = (
            scenario,
            scenario.cluster("encrypted"),
            scenario.directory / "disks-encrypted",
        )
        self.disks.mkdir()
        self.secrets = scenario.directory / "secrets"
        self.secrets.mkdir()
        self.passphrase, self.key_file = self.secrets / "passphrase", self.secrets / "key"
        self.passphrase.write_text(PASSPHRASE + "\nthe second line counts for nothing\n")
        self.key_file.write_bytes(KEY_FILE)
        self.unlock = [["--passphrase-file", self.passphrase], ["--key-file", self.key_file], ["--kms"]]

    def path(self, name):
        return self.disks / name

    def create(self, *more, ok=(0,)):
        return self.cluster.cli("osd", "create", *more, "--json", ok=ok)

    def create_all(self):
        for number, unlock in enumerate(self.unlock):
            wal = [] if number == 1 else ["--wal-device", self.path(f"wal-{number}"), "--wal-size", "96M"]
            made = json.loads(
                self.create("--device", self.path(f"data-{number}"), "--size", "1G", "--encrypt", *unlock, *wal).stdout
            )
            assert made["id"] == number and made["device_bytes"] == GIB - 16 * MIB, f"{made}"

    def files(self):
        return sorted(self.disks.iterdir())

    def cryptsetup(self, *command, ok=(0,)):
        return self.scenario.run("cryptsetup", "--batch-mode", "--disable-locks", *command, ok=ok)

    def secret(self, name, content):
        """A key file for cryptsetup, which takes all of it."""
        path = self.secrets / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def refused(self, number, *more, words):
        """An OSD that does not start, run by hand: it ends with exit code 1 and says why."""
        done = self.scenario.run(
            self.scenario.atoll, "osd", "run", "--id", number, *more, "--data", self.cluster.data, ok=None, timeout=60
        )
        assert done.returncode == 1, f"osd.{number} {more}: exit code {done.returncode}\n{done.stderr}"
        said = next(line for line in done.stderr.splitlines() if line.startswith("atoll: "))
        for word in words:
            assert word in said, f"osd.{number} {more}: '{word}' is not in: {said}"
        return said.replace(str(self.scenario.directory), "...")[:200]


def body(number):
    return f"content of {number}. ".encode() * (OBJECT_BYTES // 20)


def fill(cluster):
    s3 = cluster.s3()
    s3.create_bucket(Bucket=BUCKET)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(
            pool.map(
                lambda number: s3.put_object(Bucket=BUCKET, Key=f"{KEY}{number}", Body=body(number)), range(OBJECTS)
            )
        )


def compare(cluster):
    s3 = cluster.s3(attempts=5)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        get = lambda number: s3.get_object(Bucket=BUCKET, Key=f"{KEY}{number}")["Body"].read() == body(number)
        wrong = [number for number, same in enumerate(pool.map(get, range(OBJECTS))) if not same]
    intact(not wrong, f"{len(wrong)} objects have changed, such as {wrong[:5]}")


def names_found(directory):
    """Files in which the bucket's or an object's name is, and the bytes that were searched."""
    found, searched = search(directory, [KEY.encode(), BUCKET.encode()])
    return {file for file, _, _ in found}, searched


@pytest.fixture(scope="module")
def encrypted(scenario):
    """Where OSDs are made."""
    return Encrypted(scenario)


@pytest.fixture(scope="module")
def created(encrypted):
    """Three OSDs, not started."""
    encrypted.create_all()
    return encrypted


@pytest.fixture(scope="module")
def filled(created):
    """The cluster on them with objects in it. Tests leave it stopped."""
    created.cluster.up()
    fill(created.cluster)
    created.cluster.down()
    return created


def test_combinations_that_make_no_sense_are_refused(scenario, encrypted, note):
    """Combinations that make no sense are refused, and nothing is made."""
    device = encrypted.path("refused")
    cases = [
        (["--encrypt"], 2, "--passphrase-file"),
        (["--encrypt", "--kms", "--key-file", encrypted.key_file], 2, "cannot be used with"),
        (["--kms"], 1, "give --encrypt"),
        (["--encrypt", "--key-file", scenario.directory / "none"], 1, "No such file"),
        (["--encrypt", "--passphrase-file", encrypted.secret("empty", "\nx")], 1, "no passphrase"),
        (["--encrypt", "--kms", "--wal-device", encrypted.path("no-wal")], 1, "--wal-size"),
        (["--encrypt", "--kms", "--size", "520M"], 1, "at least"),
    ]
    for options, code, word in cases:
        size = [] if "--size" in options else ["--size", "1G"]
        done = encrypted.create("--device", device, *size, *options, ok=None)
        assert done.returncode == code and word in done.stderr, f"{options}: {done.returncode} {done.stderr}"
        assert not device.exists(), f"{options}: the file is left"
    note(f"{len(cases)} of them")


def test_osd_create_encrypt_with_a_passphrase(created, note):
    """Osd create --encrypt with a passphrase, a key file and the key service; each device is a volume."""
    dumps = {path.name: created.cryptsetup("luksDump", path).stdout for path in created.files()}
    for name, dump in dumps.items():
        for word in ("aes-xts-plain64", "sector: 4096 [bytes]", "offset: 16777216 [bytes]", "argon2id"):
            assert word in dump, f"{name}: '{word}' is not in: {dump}"
        assert ("atoll-kms" in dump) == name.endswith("-2"), f"{name}: {dump}"
    uuids = {line for dump in dumps.values() for line in dump.splitlines() if line.startswith("UUID")}
    assert len(uuids) == len(dumps) == 5, f"{uuids}"
    note("5 headers by luksDump")


def test_cryptsetup_opens_them_with_what_they_were_made_with(created):
    """Cryptsetup opens them with what they were made with, and with nothing else."""
    right = {"0": created.secret("right-0", PASSPHRASE), "1": created.key_file}
    for path in created.files():
        for number, secret in right.items():
            done = created.cryptsetup("open", "--test-passphrase", "--key-file", secret, path, ok=(0, 2))
            assert (done.returncode == 0) == path.name.endswith(number), f"{path.name} {number}: {done.returncode}"


def test_a_store_is_checked_as_the_osd_would_unlock_it(filled):
    """'store check' and 'dump' find what unlocks a device and its log, by its name in the data directory and by a link
    to it there; without that they say what is missing, and nothing that would destroy it."""
    atoll, data = filled.scenario.atoll, filled.cluster.data

    def store(what, device, *more, ok=(0,), directory=data):
        return filled.scenario.run(
            atoll, "store", what, "--device", device, "--data-directory", directory, *more, ok=ok, timeout=60
        )

    for number in range(3):
        report = json.loads(store("check", data / f"osd-{number}" / "device", "--json").stdout)
        assert report["problem_count"] == 0 and report["objects"] > 0, f"{report}"
    assert "superblock" in store("dump", filled.path("data-0")).stdout
    nowhere = filled.scenario.directory / "nowhere"
    said = store("check", filled.path("data-1"), ok=(1,), directory=nowhere).stderr
    assert "is encrypted" in said and "--key-file" in said and "destroys" not in said, said
    store("check", filled.path("data-1"), "--key-file", filled.key_file, directory=nowhere)
    empty = filled.secret("empty-device", bytes(4 * MIB))
    said = store("check", empty, ok=(1,), directory=nowhere).stderr
    assert "no Atoll store" in said and "destroys" not in said, said


def test_the_choice_is_remembered(created):
    """The choice is remembered, the passphrase is not."""
    remembered = [
        json.loads((created.cluster.data / f"osd-{number}" / "at-rest.json").read_text())["unlock_with"]
        for number in range(3)
    ]
    assert remembered == [
        {"passphrase_file": str(created.passphrase)},
        {"key_file": str(created.key_file)},
        "kms",
    ], f"{remembered}"
    found, _ = search(created.cluster.data, [PASSPHRASE.encode(), KEY_FILE])
    assert not found, f"{found}"


@pytest.mark.nightly
def test_a_luks2_volume_is_not_overwritten_without_wipe(scenario, created, note):
    """A LUKS2 volume is not overwritten without --wipe."""
    done = created.create("--device", created.path("data-0"), "--encrypt", "--kms", ok=None)
    assert done.returncode == 1 and "a LUKS2 volume" in done.stderr and "--wipe" in done.stderr, done.stderr
    note(done.stderr.strip().replace(str(scenario.directory), "..."))


@pytest.mark.nightly
def test_without_encryption_the_names_are_in_clear(scenario, note):
    """Without encryption the names are in clear, on the data device and on the WAL device."""
    plain, plain_disks = scenario.cluster("plain"), scenario.directory / "disks-plain"
    plain_disks.mkdir()
    plain.cli(
        "osd",
        "create",
        "--device",
        plain_disks / "data",
        "--size",
        "1G",
        "--wal-device",
        plain_disks / "wal",
        "--wal-size",
        "80M",
    )
    plain.osds = 1
    plain.up()
    fill(plain)
    plain.down()
    plain.up()
    plain.down()
    found, searched = names_found(plain_disks)
    assert found == {"data", "wal"}, f"only in {found}"
    note(f"{searched / MIB:.0f} MiB searched")


@pytest.mark.nightly
def test_with_encryption_they_are_nowhere(filled, note):
    """With encryption they are nowhere, neither while it runs nor after kill -9 nor after a stop."""
    cluster = filled.cluster
    places, searched = set(), 0
    for disturb in (cluster.up, cluster.kill_all, cluster.up, cluster.down):
        disturb()
        found, more = names_found(filled.disks)
        places, searched = places | found, searched + more
    assert not places, f"in {places}"
    assert searched > 4 * 150 * MIB, f"only {searched} bytes were there to search"
    note(f"{searched / MIB:.0f} MiB searched")


def test_everything_is_read_back_after_kill_9_and_a_restart(filled, note):
    """Everything is read back after kill -9 and a restart."""
    cluster = filled.cluster
    note(f"healthy after {cluster.up():.1f} s")
    compare(cluster)
    cluster.kill("osd.0")
    cluster.kill("osd.2")
    wait_for("the cluster is healthy again", lambda: cluster.json("status")["health"] == "ok", 60)
    compare(cluster)
    cluster.down()


@pytest.mark.nightly
def test_a_wrong_passphrase_a_wrong_key_file_and_none_at_all(filled, note):
    """A wrong passphrase, a wrong key file and none at all: exit code 1, and the error says what to do."""
    wrong = filled.secret("wrong", "not it")
    note(
        filled.refused(
            0, "--passphrase-file", wrong, words=["cannot unlock", "opens none of the 1 keyslots", "luksDump"]
        )
    )
    filled.refused(1, "--key-file", wrong, words=["cannot unlock", "opens none"])
    filled.refused(1, "--passphrase-file", filled.key_file, words=["cannot unlock"])
    filled.refused(0, "--kms", words=["no token 'atoll-kms'"])
    filled.refused(2, "--key-file", wrong, words=["cannot unlock"])
    remembered = filled.cluster.data / "osd-0" / "at-rest.json"
    text = remembered.read_text()
    remembered.unlink()
    filled.refused(0, words=["is encrypted (LUKS2 volume", "at-rest.json", "--passphrase-file"])
    remembered.write_text(text)


def test_a_key_service_without_the_key_is_named(filled):
    """A key service without the key is named."""
    service = filled.cluster.data / "keys" / "kms.json"
    text = service.read_text()
    service.write_text(text.replace('"id": "', '"id": "0'))
    filled.refused(2, words=["the key service has no passphrase for", "not the key file of this cluster"])
    service.write_text(text)


@pytest.mark.nightly
def test_lukschangekey_the_osd_opens_with_the_new_passphrase(filled, note):
    """luksChangeKey: the OSD opens with the new passphrase, and the old one is refused."""
    old, new = filled.secret("old", PASSPHRASE), filled.secret("new", NEW_PASSPHRASE)
    for name in ("data-0", "wal-0"):
        filled.cryptsetup("luksChangeKey", *QUICK, "--key-file", old, filled.path(name), new)
    note(filled.refused(0, words=["cannot unlock", "opens none of the 1 keyslots"]))
    filled.passphrase.write_text(NEW_PASSPHRASE)


@pytest.mark.nightly
def test_luksaddkey_and_luksremovekey_the_osd_opens_with_the_added_key_file(filled, note):
    """luksAddKey and luksRemoveKey: the OSD opens with the added key file, and the removed one is refused."""
    new_key = filled.secret("new-key", NEW_KEY_FILE)
    filled.cryptsetup("luksAddKey", *QUICK, "--key-file", filled.key_file, filled.path("data-1"), new_key)
    filled.cryptsetup("luksRemoveKey", filled.path("data-1"), filled.key_file)
    filled.refused(1, words=["cannot unlock", "opens none of the 1 keyslots"])
    filled.key_file.write_bytes(NEW_KEY_FILE)
    note(f"healthy after {filled.cluster.up():.1f} s")
    compare(filled.cluster)
    filled.cluster.down()


@pytest.mark.nightly
def test_a_damaged_first_copy_of_the_header(scenario, filled, note):
    """A damaged first copy of the header: the second one is used, with a warning; cryptsetup repairs it."""
    cluster, path = filled.cluster, filled.path("data-0")
    with open(path, "r+b") as device:
        device.seek(4096)
        device.write(b"damage")
    cluster.up()
    compare(cluster)
    cluster.down()
    warning = [
        line for line in (cluster.data / "log" / "osd.0.log").read_text().splitlines() if "cryptsetup repair" in line
    ]
    assert warning and "WARN" in warning[-1], "there is no warning"
    filled.cryptsetup("repair", path)
    note(warning[-1].split("WARN")[1].replace(str(scenario.directory), "...")[:120])


@pytest.mark.nightly
def test_both_copies_damaged_and_none_at_all(scenario, filled, note):
    """Both copies damaged, and none at all: named; luksHeaderRestore brings the OSD back."""
    path = filled.path("data-0")
    backup = scenario.directory / "backup"
    filled.cryptsetup("luksHeaderBackup", path, "--header-backup-file", backup)
    with open(path, "r+b") as device:
        for place in (4096, (16 << 10) + 4096):
            device.seek(place)
            device.write(b"damage")
    note(filled.refused(0, words=["the LUKS2 header is damaged", "luksHeaderRestore"]))
    with open(path, "r+b") as device:
        device.write(bytes(MIB))
    filled.refused(0, words=["is not encrypted, or its LUKS2 header was overwritten", "at-rest.json"])
    filled.cryptsetup("luksHeaderRestore", path, "--header-backup-file", backup)


@pytest.mark.nightly
def test_volumes_that_are_not_ours(filled, note):
    """Volumes that are not ours, and what is not supported, are named."""
    cluster = filled.cluster
    link, foreign = cluster.data / "osd-1" / "device", filled.path("foreign")
    target = link.readlink()
    for options, words in (
        (["--sector-size", "4096"], ["there is no Atoll store in it"]),
        (["--sector-size", "512"], ["sectors of 512 bytes", "does not support"]),
        (
            ["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256", "--sector-size", "4096"],
            ["the cipher 'aes-cbc-essiv:sha256'"],
        ),
    ):
        foreign.unlink(missing_ok=True)
        with open(foreign, "wb") as file:
            file.truncate(GIB)
        filled.cryptsetup("luksFormat", "--type", "luks2", *QUICK, *options, "--key-file", filled.key_file, foreign)
        link.unlink()
        link.symlink_to(foreign)
        note(filled.refused(1, words=words))
    link.unlink()
    link.symlink_to(target)


@pytest.mark.nightly
def test_all_of_that_has_cost_nothing(filled):
    """All of that has cost nothing."""
    cluster = filled.cluster
    cluster.up()
    compare(cluster)
    cluster.down()


@pytest.mark.nightly
def test_wipe_overwrites_both_copies_of_the_header(filled, note):
    """--wipe overwrites both copies of the header; the OSD is filled anew."""
    cluster = filled.cluster
    (cluster.data / "osd-1" / "device").unlink()
    filled.create("--device", filled.path("data-1"), "--wipe", "--id", "1")
    assert not (cluster.data / "osd-1" / "at-rest.json").exists(), "what unlocked the old device is still remembered"
    assert filled.cryptsetup("isLuks", filled.path("data-1"), ok=None).returncode != 0, (
        "cryptsetup still finds a header"
    )
    front = filled.path("data-1").open("rb").read(16 * MIB)
    assert b"SKUL\xba\xbe" not in front and b"LUKS\xba\xbe" not in front, "a copy of the header is left"
    note(f"healthy after {cluster.up():.1f} s")
    compare(cluster)
    cluster.down()


@pytest.mark.nightly
def test_atoll_up_encrypt_at_rest_the_device_file_is_a_volume(scenario, note):
    """'atoll up --encrypt-at-rest': the device file is a volume, and a new one in its place is, too."""
    cluster = scenario.cluster("up", osds=3, osd_size="1G")
    scenario.run(*cluster.up_command("--encrypt-at-rest", "--detach"), env=cluster.environment())
    fill(cluster)
    compare(cluster)
    cluster.down()
    device = cluster.data / "osd-0" / "device"
    assert "atoll-kms" in scenario.run("cryptsetup", "luksDump", device).stdout, "there is no token"
    found, searched = names_found(device.parent)
    assert not found, f"{found}"
    cluster.up()
    compare(cluster)
    cluster.down()
    device.unlink()
    cluster.options += ["--new-device", "0"]
    cluster.up()
    del cluster.options[-2:]
    compare(cluster)
    cluster.down()
    scenario.run("cryptsetup", "isLuks", device)
    assert stat.S_IMODE((device.parent / "at-rest.json").stat().st_mode) == 0o600, "others may read it"
    note(f"{searched / MIB:.0f} MiB searched")


@pytest.mark.nightly
def test_a_cluster_that_was_made_without_it_stays_as_it_is(scenario):
    """A cluster that was made without it stays as it is."""
    other = scenario.cluster("plain-up", osds=1, osd_size="1G")
    other.up()
    other.down()
    done = scenario.run(*other.up_command("--encrypt-at-rest", "--detach"), env=other.environment(), ok=None)
    assert done.returncode == 1 and "--encrypt-at-rest was chosen when the cluster was made" in done.stderr, done.stderr
