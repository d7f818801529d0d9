//! The switch of a drive's volatile write cache, where the drive and the kernel have one.
//!
//! Not `queue/write_cache`: writing there only makes the kernel believe that there is nothing to flush, and the
//! drive's cached data is lost on a power failure.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use super::settings::nvme_controller;
use crate::facts::Facts;

/// The state of a volatile write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    On,
    Off,
}

impl Cache {
    pub fn other(self) -> Cache {
        match self {
            Cache::On => Cache::Off,
            Cache::Off => Cache::On,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Cache::On => "write back",
            Cache::Off => "write through",
        }
    }
}

/// Ways to change the cache itself.
pub(super) enum Switch {
    /// A file of the driver: SCSI disks (and SATA behind them) and virtio disks have one.
    File(PathBuf),
    /// A feature of an NVMe controller, through `nvme` of the package nvme-cli.
    Nvme(String),
}

/// Restores the previous state of the cache.
pub(super) struct Restore<'a> {
    switch: &'a Switch,
    was: Cache,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.switch.set(self.was) {
            // Without anybody who reads there is nobody to tell.
            let _ = writeln!(
                std::io::stderr(),
                "atoll: the write cache could not be set back ({error}); do it by hand: {}",
                self.switch.command(self.was)
            );
        }
    }
}

impl Switch {
    pub fn find(facts: &Facts, disk: &str) -> Option<Switch> {
        if let Some(controller) = nvme_controller(disk) {
            return Some(Switch::Nvme(format!("/dev/{controller}")));
        }
        let scsi = format!("sys/block/{disk}/device/scsi_disk");
        let of_scsi = facts.names(&scsi).into_iter().map(|address| format!("{scsi}/{address}/cache_type"));
        let file = of_scsi.chain([format!("sys/block/{disk}/cache_type")]).find(|name| facts.exists(name))?;
        Some(Switch::File(facts.path(&file)))
    }

    pub fn state(&self) -> Result<Cache, String> {
        let text = match self {
            Switch::File(path) => {
                fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?
            }
            Switch::Nvme(controller) => nvme(&["get-feature", controller, "--feature-id=6"])?,
        };
        let state = match self {
            Switch::File(_) => state_of_words(&text),
            Switch::Nvme(_) => state_of_feature(&text),
        };
        state.ok_or_else(|| format!("the state of the write cache is not understood: '{}'", text.trim()))
    }

    /// Sets the cache until the returned value is dropped.
    pub fn set_for_now(&self, state: Cache) -> Result<Restore<'_>, String> {
        self.set(state).map_err(|error| format!("the write cache cannot be switched: {error}"))?;
        Ok(Restore { switch: self, was: state.other() })
    }

    fn set(&self, state: Cache) -> Result<(), String> {
        match self {
            Switch::File(path) => {
                fs::write(path, state.words()).map_err(|error| format!("{}: {error}", path.display()))
            }
            Switch::Nvme(controller) => {
                nvme(&["set-feature", controller, "--feature-id=6", feature_value(state)]).map(drop)
            }
        }
    }

    /// The command that does the same by hand.
    pub fn command(&self, state: Cache) -> String {
        match self {
            Switch::File(path) => format!("echo {} > {}", state.words(), path.display()),
            Switch::Nvme(controller) => {
                format!("nvme set-feature {controller} --feature-id=6 {}", feature_value(state))
            }
        }
    }
}

fn feature_value(state: Cache) -> &'static str {
    match state {
        Cache::On => "--value=1",
        Cache::Off => "--value=0",
    }
}

fn state_of_words(text: &str) -> Option<Cache> {
    // SCSI disks have two more words, for whether reads are cached and writes forced through.
    match text.trim().split(',').next()? {
        "write back" => Some(Cache::On),
        "write through" | "none" => Some(Cache::Off),
        _ => None,
    }
}

/// Understands `get-feature:0x06 (Volatile Write Cache), Current value:0x00000001`.
fn state_of_feature(text: &str) -> Option<Cache> {
    let value = text.split_once("value:")?.1.split_whitespace().next()?;
    let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?;
    Some(if value & 1 == 1 { Cache::On } else { Cache::Off })
}

fn nvme(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("nvme").args(arguments).output();
    let output = output.map_err(|error| format!("'nvme' cannot be started ({error}); apt install nvme-cli"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("'nvme {}' failed: {}", arguments.join(" "), text.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::facts_of;

    #[test]
    fn the_cache_is_set_back() {
        let name = "sys/block/sda/device/scsi_disk/0:0:0:0/cache_type";
        let (keep, facts) = facts_of(&[(name, "write back\n")]);
        let switch = Switch::find(&facts, "sda").unwrap();
        let text = || fs::read_to_string(keep.path().join(name)).unwrap();
        assert_eq!(switch.state(), Ok(Cache::On));
        let restore = switch.set_for_now(Cache::Off).unwrap();
        assert_eq!(text(), "write through");
        drop(restore);
        assert_eq!(text(), "write back");
    }

    #[test]
    fn virtio_disks_have_the_file_elsewhere() {
        let (_keep, facts) = facts_of(&[("sys/block/vda/cache_type", "write through\n")]);
        assert_eq!(Switch::find(&facts, "vda").unwrap().state(), Ok(Cache::Off));
        assert!(Switch::find(&facts, "vdb").is_none());
    }

    #[test]
    fn answers_of_nvme_are_understood() {
        let answer = |value| format!("get-feature:0x06 (Volatile Write Cache), Current value:{value}\n");
        assert_eq!(state_of_feature(&answer("0x00000001")), Some(Cache::On));
        assert_eq!(state_of_feature(&answer("00000000")), Some(Cache::Off));
        assert_eq!(state_of_feature("NVMe status: INVALID_FIELD"), None);
        assert_eq!(state_of_words("write back, no read (daft)"), Some(Cache::On));
        assert_eq!(state_of_words("unknown"), None);
    }
}
