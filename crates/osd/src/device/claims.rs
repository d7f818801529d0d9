//! Users of a block device, as the kernel shows them in sysfs and procfs. This is for messages and for devices
//! with partitions; that no other process uses a device is certain only once it is taken.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names of the partitions of a block device; empty for anything else.
pub(super) fn partitions_of(path: &Path) -> Vec<String> {
    let Some(number) = device_number(path) else { return Vec::new() };
    let mut partitions = names_in(&sysfs(&number));
    partitions.retain(|name| sysfs(&number).join(name).join("partition").exists());
    partitions
}

/// Returns the users of a block device or one of its partitions: mount points, swap, other block devices.
pub(super) fn users_of(path: &Path) -> Vec<String> {
    let Some(whole) = device_number(path) else { return Vec::new() };
    let number_of = |name: &String| fs::read_to_string(sysfs(&whole).join(name).join("dev")).ok();
    let partitions = partitions_of(path);
    let mut numbers: Vec<String> =
        partitions.iter().filter_map(number_of).map(|text| text.trim().into()).collect();
    numbers.push(whole);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut users = Vec::new();
    for number in &numbers {
        users.extend(mount_points(&mounts, number).map(|point| format!("mounted on {point}")));
        let holders = names_in(&sysfs(number).join("holders"));
        users.extend(holders.into_iter().map(|name| format!("part of {name}")));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let is_swap = |line: &str| line.split(' ').next().and_then(|area| device_number(Path::new(area)));
    users.extend(swaps.lines().filter_map(is_swap).filter(|area| numbers.contains(area)).map(|_| "swap".into()));
    users
}

/// `MAJOR:MINOR` of a block device.
fn device_number(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Some(format!("{}:{}", rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev())))
}

fn sysfs(number: &str) -> PathBuf {
    Path::new("/sys/dev/block").join(number)
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Mount points of a device in the text of mountinfo, which has the device in its third field and
/// the mount point in its fifth.
fn mount_points<'a>(mounts: &'a str, number: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(number)).then(|| fields.nth(1)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_found_by_device_number() {
        let mounts = "36 35 98:0 /mnt1 /mnt/a rw,noatime master:1 - ext3 /dev/root rw\n\
                      37 35 7:1 / /mnt/b rw - ext4 /dev/loop1 rw\n";
        assert_eq!(mount_points(mounts, "7:1").collect::<Vec<_>>(), ["/mnt/b"]);
        assert_eq!(mount_points(mounts, "98:0").collect::<Vec<_>>(), ["/mnt/a"]);
        assert_eq!(mount_points(mounts, "7:2").count(), 0);
        assert_eq!(mount_points("short", "7:2").count(), 0);
    }

    #[test]
    fn files_have_neither_partitions_nor_users() {
        assert!(partitions_of(Path::new("/proc/self/exe")).is_empty());
        assert!(users_of(Path::new("/proc/self/exe")).is_empty());
    }
}
