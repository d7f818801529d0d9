//! Names of images for hosts.

use aws_lc_rs::digest::{SHA256, digest};

use atoll_types::nvme_hosts::NQN_BYTES_MAX;

/// Beginning of the names of all subsystems of Atoll.
const PREFIX: &str = "nqn.2026-11.io.atoll";

/// The names of the images of one cluster.
pub(crate) struct Names {
    cluster_id: String,
}

/// Identity of a namespace, the same on every path to it and after a move to another pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// NGUID, and UUID.
    pub id: [u8; 16],
    /// The serial number of the subsystem.
    pub serial: String,
}

impl Names {
    pub fn new(cluster_id: String) -> Self {
        Names { cluster_id }
    }

    /// The subsystem of an image, or `IMAGE@SNAPSHOT`, unless that name is too long for hosts.
    pub fn subsystem(&self, image: &str) -> Option<String> {
        let name = format!("{PREFIX}:{}:{image}", self.cluster_id);
        (name.len() <= NQN_BYTES_MAX).then_some(name)
    }

    /// The image of a subsystem.
    pub fn image<'a>(&self, subsystem: &'a str) -> Option<&'a str> {
        let rest = subsystem.strip_prefix(PREFIX)?.strip_prefix(':')?;
        rest.strip_prefix(&self.cluster_id)?.strip_prefix(':').filter(|image| !image.is_empty())
    }

    /// Returns the identity of an image that was created at this Unix time. One that is made later under the same
    /// name is another.
    pub fn identity(&self, image: &str, created_unix_ms: u64) -> Identity {
        let named = format!("{}/{image}/{created_unix_ms}", self.cluster_id);
        let hash = digest(&SHA256, named.as_bytes());
        let (id, rest) = hash.as_ref().split_at(16);
        let mut id: [u8; 16] = id.try_into().expect("it was cut there");
        // A UUID of version 8 (RFC 9562, section 5.8).
        id[6] = id[6] & 0x0F | 0x80;
        id[8] = id[8] & 0x3F | 0x80;
        let serial = hex::encode(&rest[..10]);
        Identity { id, serial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_and_back() {
        let names = Names::new("c1".into());
        let subsystem = names.subsystem("disk@monday").unwrap();
        assert_eq!(subsystem, "nqn.2026-11.io.atoll:c1:disk@monday");
        assert_eq!(names.image(&subsystem), Some("disk@monday"));
        for other in
            ["nqn.2026-11.io.atoll:c1:", "nqn.2026-11.io.atoll:c2:disk", "nqn.2026-11.io.atoll", "disk", ""]
        {
            assert_eq!(names.image(other), None, "{other}");
        }
        assert_eq!(names.subsystem(&"x".repeat(250)), None);
    }

    #[test]
    fn identities_differ() {
        let names = Names::new("c1".into());
        let disk = names.identity("disk", 1);
        assert_eq!(disk, names.identity("disk", 1));
        assert_eq!((disk.serial.len(), disk.id[6] >> 4, disk.id[8] >> 6), (20, 8, 2));
        for other in
            [names.identity("disk", 2), names.identity("disk2", 1), Names::new("c2".into()).identity("disk", 1)]
        {
            assert!(other.id != disk.id && other.serial != disk.serial);
        }
    }
}
