//! Memory for keys: it is never swapped out, it is in no core dump, and it is wiped when a key goes.
//!
//! The crate's only file with `unsafe`: its public items are safe to call.
#![expect(unsafe_code, reason = "memory is locked by its address")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous};
use zeroize::Zeroize;

const KEY_BYTES: usize = 32;
/// Memory that is locked at once. The usual limit of locked memory is 8 MiB.
const REGION_BYTES: usize = 64 << 10;

type Slot = NonNull<[u8; KEY_BYTES]>;

/// Slots that no key is in. They are never given back to the system.
struct Free(Vec<Slot>);

// SAFETY: a slot in the list is nobody's, so whoever takes it out is the only one who has it.
unsafe impl Send for Free {}

static FREE: Mutex<Free> = Mutex::new(Free(Vec::new()));

/// 32 bytes in locked memory.
pub(crate) struct LockedBytes(Slot);

// SAFETY: the slot is this value's alone, and is written only when it is made and when it is dropped.
unsafe impl Send for LockedBytes {}
// SAFETY: as above; in between it is only read.
unsafe impl Sync for LockedBytes {}

fn take_slot() -> Slot {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.0.is_empty() {
        free.0 = new_region();
    }
    free.0.pop().expect("a region has slots")
}

fn new_region() -> Vec<Slot> {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let region =
        unsafe { mmap_anonymous(null_mut(), REGION_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    let region = region.expect("there is memory for keys");
    // SAFETY: the region was just mapped with this length, and neither call changes what is in it.
    let kept = unsafe { mlock(region, REGION_BYTES).and(madvise(region, REGION_BYTES, Advice::LinuxDontDump)) };
    if let Err(error) = kept {
        tracing::warn!(
            "memory for keys may be swapped out: {error}; raise the limit of locked memory (LimitMEMLOCK)"
        );
    }
    let first = region.cast::<[u8; KEY_BYTES]>();
    // SAFETY: each slot is within the region, which is a multiple of a slot long.
    let slot = |index| unsafe { NonNull::new_unchecked(first.add(index)) };
    (0..REGION_BYTES / KEY_BYTES).map(slot).collect()
}

impl LockedBytes {
    /// Moves bytes there: they are wiped where they were.
    pub fn take(bytes: &mut [u8; KEY_BYTES]) -> Self {
        let slot = take_slot();
        // SAFETY: the slot is mapped, aligned (bytes always are) and nobody else's.
        unsafe { slot.write(*bytes) };
        bytes.zeroize();
        LockedBytes(slot)
    }

    pub fn get(&self) -> &[u8; KEY_BYTES] {
        // SAFETY: the slot was written when this was made, and is changed by its drop only.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for LockedBytes {
    fn clone(&self) -> Self {
        let slot = take_slot();
        // SAFETY: both slots are mapped, and they are two.
        unsafe { slot.copy_from_nonoverlapping(self.0, 1) };
        LockedBytes(slot)
    }
}

impl Drop for LockedBytes {
    fn drop(&mut self) {
        // SAFETY: nobody else has the slot, and nobody reads it after this.
        unsafe { self.0.as_mut() }.zeroize();
        FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the mapping at an address, as the kernel says them.
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_within = false;
        for line in maps.lines() {
            let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
            let parsed = range.and_then(|(from, to)| {
                Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
            });
            if let Some((from, to)) = parsed {
                is_within = (from..to).contains(&address);
            } else if is_within && line.starts_with("VmFlags:") {
                return line.to_owned();
            }
        }
        panic!("nothing is mapped there");
    }

    #[test]
    fn keys_are_locked_and_in_no_core_dump() {
        let mut bytes = [7; KEY_BYTES];
        let key = LockedBytes::take(&mut bytes);
        assert_eq!((bytes, key.get()), ([0; KEY_BYTES], &[7; KEY_BYTES]));
        let flags = flags_of(key.0.as_ptr() as usize);
        assert!(flags.contains(" lo") && flags.contains(" dd"), "locked, not dumped: {flags}");
        let other = key.clone();
        assert_ne!(other.0, key.0);
        let slot = key.0;
        drop(key);
        // SAFETY: the region stays mapped; another test may have the slot by now, and has other bytes.
        assert_ne!(unsafe { slot.read_volatile() }, [7; KEY_BYTES]);
        assert_eq!(other.get(), &[7; KEY_BYTES]);
    }

    #[test]
    fn there_is_room_for_more_keys_than_a_region_has() {
        let keys: Vec<LockedBytes> = (0..5_000_u32)
            .map(|number| {
                let mut bytes = [0; KEY_BYTES];
                bytes[..4].copy_from_slice(&number.to_le_bytes());
                LockedBytes::take(&mut bytes)
            })
            .collect();
        let is_right = |(number, key): (u32, &LockedBytes)| key.get()[..4] == number.to_le_bytes();
        assert!((0..).zip(&keys).all(is_right));
    }
}
