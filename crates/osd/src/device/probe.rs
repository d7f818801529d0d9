//! The content of a device: the marks that file systems, volume managers, partition tables and Atoll itself leave
//! near its ends. Nothing that is found is ever used, only named to the user.

use atoll_buffers::BLOCK_BYTES;

/// How much of each end is looked at, in bytes.
pub(super) const PROBE_BYTES: usize = 1 << 20;

/// Where a mark is.
enum Place {
    /// Bytes from the start of the device.
    Start(usize),
    /// Bytes before its end.
    End(usize),
}
use Place::{End, Start};

/// Marks that are the same bytes at the same place whatever else the format says.
const MARKS: &[(&str, Place, &[u8])] = &[
    ("a LUKS1 volume", Start(0), b"LUKS\xba\xbe\x00\x01"),
    ("a LUKS2 volume", Start(0), b"LUKS\xba\xbe\x00\x02"),
    ("an XFS file system", Start(0), b"XFSB"),
    ("a btrfs file system", Start(0x10040), b"_BHRfS_M"),
    ("an F2FS file system", Start(1024), b"\x10\x20\xf5\xf2"),
    ("a bcache device", Start(4120), b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf7\x7f\x48\xba\x6d\x81"),
    ("a bcachefs file system", Start(4120), b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("a BitLocker volume", Start(3), b"-FVE-FS-"),
    ("a FAT file system", Start(54), b"FAT1"),
    ("a FAT file system", Start(82), b"FAT32"),
    ("an ISO 9660 file system", Start(0x8001), b"CD001"),
    ("a GPT partition table", Start(512), b"EFI PART"),
    ("a GPT partition table", Start(4096), b"EFI PART"),
    ("the backup of a GPT partition table", End(512), b"EFI PART"),
    ("the backup of a GPT partition table", End(4096), b"EFI PART"),
    ("a swap area", Start(4096 - 10), b"SWAPSPACE2"),
    ("a swap area", Start(4096 - 10), b"SWAP-SPACE"),
    ("a swap area", Start(16384 - 10), b"SWAPSPACE2"),
    ("a swap area", Start(65536 - 10), b"SWAPSPACE2"),
    ("an Intel firmware RAID", End(1024), b"Intel Raid ISM Cfg Sig. "),
    ("a DDF firmware RAID", End(512), b"\xde\x11\xde\x11"),
];

/// The first and last bytes of a device, at most [`PROBE_BYTES`] each.
pub(super) struct Ends<'a> {
    pub first: &'a [u8],
    pub last: &'a [u8],
}

impl Ends<'_> {
    /// Names of everything that was found; empty if all is zero.
    pub fn contents(&self) -> Vec<String> {
        let fixed = MARKS.iter().filter(|(_, place, mark)| self.has(place, mark)).map(|(name, ..)| (*name).into());
        let special = [self.atoll(), self.bluestore(), self.ext(), self.lvm(), self.md_raid(), self.zfs()];
        let mut found: Vec<String> = special.into_iter().flatten().chain(fixed).collect();
        if found.is_empty() {
            found.extend(self.mbr().or_else(|| self.unknown()));
        }
        found.dedup();
        found
    }

    fn has(&self, place: &Place, mark: &[u8]) -> bool {
        match *place {
            Start(offset) => has_at(self.first, offset, mark),
            End(before) => {
                self.last.len().checked_sub(before).is_some_and(|offset| has_at(self.last, offset, mark))
            }
        }
    }

    /// Our own superblock, in both its places: magic, version (4 bytes), store id (16 bytes).
    fn atoll(&self) -> Option<String> {
        let copy = [0, BLOCK_BYTES].into_iter().find(|&offset| has_at(self.first, offset, b"ATOLSTOR"))?;
        Some(format!("the Atoll store {}", hex::encode(self.first.get(copy + 12..copy + 28)?)))
    }

    /// Ceph's label has the OSD's UUID as text in its second line.
    fn bluestore(&self) -> Option<String> {
        let label = self.first.strip_prefix(b"bluestore block device\n")?;
        let uuid: String =
            label.iter().take(36).take_while(|b| b.is_ascii_graphic()).map(|&b| b as char).collect();
        Some(format!("the Ceph BlueStore OSD {uuid}"))
    }

    /// ext2, ext3 and ext4 share a magic number; their feature flags distinguish them.
    fn ext(&self) -> Option<String> {
        const SUPERBLOCK: usize = 1024;
        const COMPATIBLE_JOURNAL: u32 = 0x4;
        const INCOMPATIBLE_EXT3: u32 = 0x2 | 0x4 | 0x10;
        const READ_ONLY_EXT3: u32 = 0x1 | 0x2 | 0x4;
        if !has_at(self.first, SUPERBLOCK + 0x38, &[0x53, 0xef]) {
            return None;
        }
        let features = |offset| little_endian(self.first, SUPERBLOCK + offset).unwrap_or(0);
        let is_ext4 = features(0x60) & !INCOMPATIBLE_EXT3 != 0 || features(0x64) & !READ_ONLY_EXT3 != 0;
        let has_journal = features(0x5c) & COMPATIBLE_JOURNAL != 0;
        let version = if is_ext4 { 4 } else { 2 + u8::from(has_journal) };
        Some(format!("an ext{version} file system"))
    }

    /// An LVM2 label is in one of the first four sectors.
    fn lvm(&self) -> Option<String> {
        let mut sectors = (0..4).map(|sector| sector * 512);
        let is_label =
            |&at: &usize| has_at(self.first, at, b"LABELONE") && has_at(self.first, at + 24, b"LVM2 001");
        sectors.any(|sector| is_label(&sector)).then(|| "an LVM2 physical volume".into())
    }

    /// The superblock of mdraid is at the start, at 4 KiB or, with versions 0.90 and 1.0, somewhere
    /// near the end.
    fn md_raid(&self) -> Option<String> {
        const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
        let at_start = [0, 4096].into_iter().any(|offset| has_at(self.first, offset, &MAGIC));
        let at_end = self.last.len().saturating_sub(128 << 10) / 4096 * 4096..self.last.len();
        let is_member = at_start || at_end.step_by(4096).any(|offset| has_at(self.last, offset, &MAGIC));
        is_member.then(|| "a member of an mdraid array".into())
    }

    /// ZFS has labels of 256 KiB, two at each end; the second half of each is a ring of uberblocks.
    fn zfs(&self) -> Option<String> {
        const MAGIC: u64 = 0x00ba_b10c;
        let has_uberblock = |bytes: &[u8], offset| {
            has_at(bytes, offset, &MAGIC.to_le_bytes()) || has_at(bytes, offset, &MAGIC.to_be_bytes())
        };
        let mut first = (128 << 10..512 << 10).step_by(1024);
        let mut last = (0..self.last.len()).step_by(1024);
        let is_member =
            first.any(|at| has_uberblock(self.first, at)) || last.any(|at| has_uberblock(self.last, at));
        is_member.then(|| "a member of a ZFS pool".into())
    }

    /// An MBR has a mark that boot sectors have, too; with an entry in use it is a partition table.
    fn mbr(&self) -> Option<String> {
        let entries = self.first.get(446..510)?;
        let is_table = has_at(self.first, 510, &[0x55, 0xaa])
            && entries.chunks(16).all(|entry| entry[0] & 0x7f == 0)
            && entries.chunks(16).any(|entry| entry[4] != 0);
        is_table.then(|| "an MBR partition table".into())
    }

    fn unknown(&self) -> Option<String> {
        let start = self.first.iter().position(|&byte| byte != 0).map(|at| format!("from byte {at}"));
        let end = || self.last.iter().rposition(|&byte| byte != 0);
        let place = start.or_else(|| end().map(|at| format!("{} bytes before the end", self.last.len() - at)))?;
        Some(format!("data of an unknown kind ({place})"))
    }
}

fn has_at(bytes: &[u8], offset: usize, mark: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(mark))
}

fn little_endian(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 4)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests;
