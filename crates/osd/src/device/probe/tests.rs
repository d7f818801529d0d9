//! Marks written by the specifications of their formats. `tests/foreign_devices.rs` has devices that
//! the real tools made.

use super::*;

const DEVICE_BYTES: usize = 8 << 20;

/// Bytes and where they are.
type Marks<'a> = &'a [(usize, &'a [u8])];

fn contents(device: &[u8]) -> Vec<String> {
    let probe_bytes = PROBE_BYTES.min(device.len());
    Ends { first: &device[..probe_bytes], last: &device[device.len() - probe_bytes..] }.contents()
}

/// Returns the content found on a device of zeros with these bytes at these places.
fn contents_with(marks: Marks<'_>) -> Vec<String> {
    let mut device = vec![0; DEVICE_BYTES];
    for (offset, bytes) in marks {
        device[*offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    contents(&device)
}

#[test]
fn an_empty_device_holds_nothing() {
    assert!(contents_with(&[]).is_empty());
    assert!(contents(&[]).is_empty() && contents(&[0; 4096]).is_empty());
}

#[test]
fn our_own_store_is_named_with_its_id_also_by_its_second_superblock() {
    let mut superblock = b"ATOLSTOR\x01\0\0\0".to_vec();
    superblock.extend([0xab; 16]);
    let expected = ["the Atoll store abababababababababababababababab"];
    assert_eq!(contents_with(&[(0, &superblock)]), expected);
    assert_eq!(contents_with(&[(4096, &superblock)]), expected);
}

#[test]
fn written_out_marks_are_named() {
    let end = DEVICE_BYTES;
    let uuid = b"bluestore block device\n0b1e7a1c-0000-4000-8000-1234567890ab\n";
    let cases: [(Marks<'_>, &str); 12] = [
        (&[(0, uuid)], "the Ceph BlueStore OSD 0b1e7a1c-0000-4000-8000-1234567890ab"),
        (&[(512, b"LABELONE"), (536, b"LVM2 001")], "an LVM2 physical volume"),
        (&[(4096, &0xa92b_4efc_u32.to_le_bytes())], "a member of an mdraid array"),
        (&[(end - 8192, &0xa92b_4efc_u32.to_le_bytes())], "a member of an mdraid array"),
        (&[(end - 65536, &0xa92b_4efc_u32.to_le_bytes())], "a member of an mdraid array"),
        (&[(135_168, &0x00ba_b10c_u64.to_le_bytes())], "a member of a ZFS pool"),
        (&[(end - (128 << 10), &0x00ba_b10c_u64.to_be_bytes())], "a member of a ZFS pool"),
        (&[(4096, b"EFI PART")], "a GPT partition table"),
        (&[(end - 512, b"EFI PART")], "the backup of a GPT partition table"),
        (&[(446 + 4, &[0x83]), (510, &[0x55, 0xaa])], "an MBR partition table"),
        (&[(0, b"XFSB")], "an XFS file system"),
        (&[(0x10040, b"_BHRfS_M")], "a btrfs file system"),
    ];
    for (marks, expected) in cases {
        assert_eq!(contents_with(marks), [expected]);
    }
}

#[test]
fn other_bytes_are_unknown_data_and_several_marks_are_all_named() {
    assert_eq!(contents_with(&[(700, &[1])]), ["data of an unknown kind (from byte 700)"]);
    assert_eq!(contents_with(&[(DEVICE_BYTES - 9, &[1])]), ["data of an unknown kind (9 bytes before the end)"]);
    assert!(contents_with(&[(DEVICE_BYTES / 2, &[1])]).is_empty(), "only the ends are looked at");
    let both = contents_with(&[(0, b"XFSB"), (4086, b"SWAPSPACE2")]);
    assert_eq!(both, ["an XFS file system", "a swap area"]);
}
