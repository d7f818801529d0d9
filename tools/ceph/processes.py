"""Server processes that outlive the command that started them: started, recorded in a file, ended by that record."""
import json, os, pathlib, signal, subprocess, time

RECORD = "processes.json"
SECONDS_TO_END = 60


class Processes:
    """The processes of one cluster by role. A process is known by its id and its start, since ids are used again."""

    def __init__(self, directory):
        self.file = directory / RECORD
        self.entries = json.loads(self.file.read_text()) if self.file.exists() else []

    def start(self, role, command, log):
        with open(log, "ab") as output:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        self.entries.append({"role": role, "pid": child.pid, "start_ticks": start_ticks(child.pid)})
        # In one step: one who is killed in the middle leaves a whole record.
        unfinished = self.file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(self.entries))
        unfinished.rename(self.file)
        return child

    def by_role(self):
        roles = {}
        for entry in self.entries:
            roles.setdefault(entry["role"], []).append(entry["pid"])
        return roles

    def ended(self):
        """Names those that have ended by themselves."""
        return ", ".join(f"{entry['role']} {entry['pid']}" for entry in self.entries if not runs(entry))

    def end(self):
        """Ends them, those that were started last first. The ids of those that had to be killed."""
        killed = []
        for role in reversed(self.by_role()):
            entries = [entry for entry in self.entries if entry["role"] == role]
            send(entries, signal.SIGTERM)
            if not wait_for_end(entries):
                killed += [entry["pid"] for entry in entries if runs(entry)]
                send(entries, signal.SIGKILL)
                wait_for_end(entries)
        return killed


def start_ticks(pid):
    """When the process started, in clock ticks since boot, or None if it is gone."""
    try:
        fields = pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def runs(entry):
    return entry["start_ticks"] is not None and start_ticks(entry["pid"]) == entry["start_ticks"]


def send(entries, number):
    for entry in entries:
        if runs(entry):
            try:
                os.kill(entry["pid"], number)
            except ProcessLookupError:
                pass


def wait_for_end(entries):
    until = time.monotonic() + SECONDS_TO_END
    while any(runs(entry) for entry in entries):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
