"""Ceph Reef from Debian 13's packages, in a chroot: debootstrap, and what the host's apt says about mirrors and proxies."""
import os, pathlib, re, shutil, subprocess

RELEASE, SERIES = "trixie", "18.2."
PACKAGES = ["ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "ceph-common", "fio"]
SECONDS_MAX = 1800
VERSION_FILE = "atoll-ceph-version"


class Failure(Exception):
    """What went wrong, why, and what to do about it."""


def installed_version(root):
    """The version of Ceph in the chroot, or None where none was installed to the end."""
    try:
        return (root / VERSION_FILE).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def install(root, mirror, say):
    """Makes the chroot, unless it is there. It is built beside its place and moved there when it is whole."""
    if version := installed_version(root):
        say(f"Ceph {version} is installed in {root}")
        return
    if root.exists():
        raise Failure(f"{root} exists and is not a chroot that this command made: name another --root, or remove it")
    if not shutil.which("debootstrap"):
        install_debootstrap(say)
    mirror = mirror or configured_mirror()
    unfinished = root.with_name(root.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        version = fill(unfinished, mirror, say)
        (unfinished / VERSION_FILE).write_text(version + "\n")
        unfinished.rename(root)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"Ceph {version} is installed in {root}")


def fill(root, mirror, say):
    """Installs everything; the version of Ceph."""
    say(f"installing Debian {RELEASE} from {mirror}")
    bootstrap = ["debootstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, str(root), mirror]
    run_in_namespace(bootstrap, f"debootstrap cannot install from {mirror}", root)
    say(f"installing {' '.join(PACKAGES)}")
    configure_apt(root, mirror)
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES], ["apt-get", "clean"]):
        run_in_namespace(["chroot", str(root), *command], f"{' '.join(command[:2])} failed in the chroot", root)
    shown = subprocess.run(["chroot", str(root), "ceph-osd", "--version"], capture_output=True, text=True, timeout=60)
    version = re.match(r"ceph version (\S+)", shown.stdout)
    if not version or not version[1].startswith(SERIES):
        raise Failure(f"the mirror's Ceph is not {SERIES}x but {shown.stdout or shown.stderr}: name another with --mirror")
    return version[1]


def install_debootstrap(say):
    say("installing debootstrap")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "debootstrap"]):
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
        except FileNotFoundError:
            raise Failure("debootstrap is not installed, and there is no apt-get to install it with: install it by hand")
        if done.returncode:
            raise Failure(f"debootstrap is not installed, and {' '.join(command)} failed: {last_lines(done.stderr)}\n"
                          "Is there a network, and a mirror in /etc/apt/sources.list.d?")


def configured_mirror():
    """The mirror of Debian's main archive that the host's apt uses."""
    wanted = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    try:
        found = subprocess.run(wanted, capture_output=True, text=True, timeout=60).stdout.split()
    except FileNotFoundError:
        found = []
    for mirror in found:
        if mirror.startswith(("http://", "https://", "file:")):
            return mirror
    raise Failure("this host's apt knows no mirror of Debian that debootstrap can use. Run apt-get update, or name one with --mirror")


def apt_options():
    """The host's settings of proxies and of how fresh a mirror must be; the rest is Debian 13's own."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=True).stdout
    return [line for line in dump.splitlines() if re.match(r"Acquire::(https?::|Check-|Retries )", line)]


def download_environment():
    """debootstrap downloads with wget, which takes its proxies from here."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for line in apt_options():
        if found := re.fullmatch(r'Acquire::(https?)::Proxy "(.+)";', line):
            environment[f"{found[1]}_proxy"] = "" if found[2] == "DIRECT" else found[2]
    return environment


def configure_apt(root, mirror):
    (root / "etc/apt/sources.list").write_text(f"deb {mirror} {RELEASE} main\n")
    (root / "etc/apt/apt.conf.d/90host").write_text("\n".join(apt_options()) + "\n")
    # Maintainer scripts must start no service: the chroot shares the host's processes.
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


def run_in_namespace(command, what, root):
    """Runs a command whose mounts and processes end with it, even if it is killed."""
    namespaces = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    log = root.with_name(root.name + ".log")
    with log.open("w") as output:
        try:
            status = subprocess.run([*namespaces, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                    env=download_environment(), timeout=SECONDS_MAX).returncode
        except subprocess.TimeoutExpired:
            status = f"it did not end within {SECONDS_MAX} s"
    if status:
        raise Failure(f"{what} ({status}): {last_lines(log.read_text())}\n"
                      f"All of it is in {log}. Is there a network, and does the mirror have {RELEASE}?")
    log.unlink()


def last_lines(text, count=5):
    return "\n".join(text.strip().splitlines()[-count:])
