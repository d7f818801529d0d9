//! Devices that other tools have made are refused by name.
//!
//! These tests start programs, so they are a process of their own: a program that is just being
//! started shares the locks of devices that the other tests have open.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use atoll_osd::{FormatError, FormatRequest, format_device, make_file};

const MIB: u64 = 1 << 20;

/// Returns the content that `format_device` names on a file of `size_bytes` that a shell command has formatted.
/// `None`, and a line about it, if the tool is not installed.
fn contents_after(tool: &str, command: &str, size_bytes: u64) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    if !path.split(':').any(|directory| Path::new(directory).join(tool).exists()) {
        eprintln!("NOT RUN: {command}: {tool} is not installed");
        return None;
    }
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let device = directory.path().join("device");
    make_file(&device, size_bytes).unwrap();
    let output = Command::new("sh").args(["-c", command]).env("PATH", path).env("FILE", &device).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let request = FormatRequest {
        device: &device,
        log_device: None,
        wal_bytes: None,
        store_id: [7; 16],
        wipe: false,
        encrypt: None,
    };
    match format_device(&request) {
        Err(FormatError::Occupied { contents, .. }) => Some(contents),
        other => panic!("{command}: {other:?}"),
    }
}

#[test]
fn what_real_tools_make_is_named() {
    let luks = "echo -n pass | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file -";
    let (luks1, luks2) = (format!("{luks} --type luks1 $FILE"), format!("{luks} --type luks2 $FILE"));
    let cases = [
        ("mkfs.ext4", "mkfs.ext4 -q -F $FILE", "an ext4 file system"),
        ("mkfs.ext4", "mkfs.ext4 -q -F -t ext3 $FILE", "an ext3 file system"),
        ("mkfs.ext4", "mkfs.ext4 -q -F -t ext2 $FILE", "an ext2 file system"),
        ("mkfs.xfs", "mkfs.xfs -q -f $FILE", "an XFS file system"),
        ("mkfs.btrfs", "mkfs.btrfs -q -f $FILE", "a btrfs file system"),
        ("mkfs.vfat", "mkfs.vfat $FILE", "a FAT file system"),
        ("mkswap", "mkswap $FILE", "a swap area"),
        ("cryptsetup", &luks1, "a LUKS1 volume"),
        ("cryptsetup", &luks2, "a LUKS2 volume"),
        ("sfdisk", "printf 'label: gpt\n,4M\n' | sfdisk -q $FILE", "a GPT partition table"),
        ("sfdisk", "printf 'label: dos\n,4M\n' | sfdisk -q $FILE", "an MBR partition table"),
    ];
    for (tool, command, expected) in cases {
        let Some(found) = contents_after(tool, command, 520 * MIB) else { continue };
        let (first, others) = found.split_once(", ").unwrap_or((&found, ""));
        assert_eq!(first, expected, "{command}: {found}");
        let only_backups = others.split(", ").all(|name| name.is_empty() || name.starts_with("the backup of"));
        assert!(only_backups, "{command}: {found}");
    }
}
