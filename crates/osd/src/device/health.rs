//! The disk's own report of its health, by `smartctl` or `nvme` where one is installed. A thread of its own asks,
//! seldom and with a time limit: a disk that fails may take long to answer.

mod document;
mod metrics;

use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use document::{Health, of_nvme, of_smartctl};
use metrics::DeviceHealth;

const PAUSE: Duration = Duration::from_secs(10 * 60);
const ANSWER_MAX: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Where the programs are, which is not on every user's `PATH`.
const PROGRAM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program that reads the health of disks.
struct Program {
    name: &'static str,
    /// Arguments before the disk.
    arguments: &'static [&'static str],
    parse: fn(&str) -> Option<Health>,
}

/// In the order in which they are tried. A disk that sleeps is not woken.
const PROGRAMS: [Program; 2] = [
    Program {
        name: "smartctl",
        arguments: &["--json=c", "--nocheck=standby", "--info", "--health", "--attributes"],
        parse: of_smartctl,
    },
    Program { name: "nvme", arguments: &["smart-log", "--output-format=json"], parse: of_nvme },
];

/// Reasons why a program has reported nothing.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("cannot start {program}: {source}")]
    Start { program: &'static str, source: io::Error },
    #[error("{program} has not answered within {} s", ANSWER_MAX.as_secs())]
    Late { program: &'static str },
    #[error("{program} does not report the health of {}", disk.display())]
    Nothing { program: &'static str, disk: PathBuf },
}

/// Watches the disks under these devices from now on, by the names of the devices.
pub(crate) fn watch<'a>(devices: impl Iterator<Item = (&'static str, &'a Path)>) -> io::Result<()> {
    let disks: Vec<(PathBuf, DeviceHealth)> =
        devices.filter_map(|(name, path)| Some((disk_of(path)?, DeviceHealth::new(name)))).collect();
    if disks.is_empty() {
        return Ok(());
    }
    std::thread::Builder::new().name("device-health".into()).spawn(move || keep_watching(&disks)).map(drop)
}

fn keep_watching(disks: &[(PathBuf, DeviceHealth)]) {
    let mut last_told = String::new();
    loop {
        for (disk, metrics) in disks {
            match ask(disk) {
                Ok(health) => metrics.set(&health),
                Err(error) => {
                    metrics.forget();
                    let error = error.to_string();
                    // It is mostly the same for ever: no program, or not the right to ask.
                    if error != last_told {
                        tracing::info!("the health of {} is not known: {error}", disk.display());
                        last_told = error;
                    }
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// The disk that a block device or a partition is on, if the system knows one: not of loops, RAIDs, mappings.
fn disk_of(path: &Path) -> Option<PathBuf> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    disk_in(Path::new("/sys/dev/block"), major, minor)
}

fn disk_in(by_number: &Path, major: u32, minor: u32) -> Option<PathBuf> {
    let mut found = std::fs::canonicalize(by_number.join(format!("{major}:{minor}"))).ok()?;
    if found.join("partition").exists() {
        found.pop();
    }
    let name = found.file_name().filter(|_| found.join("device").exists())?;
    Some(Path::new("/dev").join(name))
}

/// Returns the health of a disk, from the first program that knows it.
fn ask(disk: &Path) -> Result<Health, AskError> {
    let mut first_error = None;
    for program in &PROGRAMS {
        match program.ask(disk) {
            Ok(health) => return Ok(health),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    Err(first_error.expect("there are programs, and none has reported"))
}

impl Program {
    fn ask(&self, disk: &Path) -> Result<Health, AskError> {
        let program = self.name;
        // Nothing of this process's environment, which may have secrets, is the program's business.
        let mut command = Command::new(program);
        command.args(self.arguments).arg(disk).env_clear().env("LC_ALL", "C").env("PATH", PROGRAM_PATH);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(|source| AskError::Start { program, source })?;
        let text = answer(child, ANSWER_MAX).ok_or(AskError::Late { program })?;
        // The exit code says something of the disk, too, so it tells nothing of whether there is an answer.
        (self.parse)(&text).ok_or_else(|| AskError::Nothing { program, disk: disk.to_owned() })
    }
}

/// Returns a program's output; none if it takes too long, and then it is ended.
fn answer(mut child: Child, answer_max: Duration) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    let output = child.stdout.take().expect("its output goes to a pipe");
    std::thread::spawn(move || {
        let mut text = String::new();
        // What is not text is no answer.
        let _ = output.take(ANSWER_BYTES_MAX).read_to_string(&mut text);
        // Nobody waits any more if it was late.
        let _ = sender.send(text);
    });
    let text = receiver.recv_timeout(answer_max).ok();
    // One that has closed its output without ending has said all as well.
    let _ = child.kill();
    let _ = child.wait();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let begun = Instant::now();
        assert_eq!(answer(shell("exec sleep 60"), Duration::from_millis(200)), None);
        assert!(begun.elapsed() < Duration::from_secs(30));
        let exits_with_a_code = answer(shell("echo text; exit 64"), Duration::from_secs(30));
        assert_eq!(exits_with_a_code.as_deref(), Some("text\n"));
        assert_eq!(answer(shell("exec yes"), Duration::from_secs(30)).map(|text| text.len()), Some(1 << 20));
    }

    /// As sysfs has them: a disk with a partition, and a loop device that is on no disk.
    #[test]
    fn partitions_are_on_disks() {
        let directory = tempfile::tempdir().unwrap();
        let [devices, by_number] = ["devices", "dev/block"].map(|name| directory.path().join(name));
        create_dir_all(&by_number).unwrap();
        let disk = devices.join("pci/nvme/nvme0/nvme0n1");
        create_dir_all(disk.join("device")).unwrap();
        create_dir_all(disk.join("nvme0n1p2")).unwrap();
        write(disk.join("nvme0n1p2/partition"), "2\n").unwrap();
        create_dir_all(devices.join("virtual/block/loop0")).unwrap();
        symlink(&disk, by_number.join("259:0")).unwrap();
        symlink(disk.join("nvme0n1p2"), by_number.join("259:2")).unwrap();
        symlink(devices.join("virtual/block/loop0"), by_number.join("7:0")).unwrap();

        assert_eq!(disk_in(&by_number, 259, 0).as_deref(), Some(Path::new("/dev/nvme0n1")));
        assert_eq!(disk_in(&by_number, 259, 2).as_deref(), Some(Path::new("/dev/nvme0n1")));
        assert_eq!(disk_in(&by_number, 7, 0), None, "a loop device");
        assert_eq!(disk_in(&by_number, 8, 0), None, "nothing has this number");
        let file = directory.path().join("osd.img");
        write(&file, "").unwrap();
        assert_eq!(disk_of(&file), None, "a file is on a file system");
    }
}
