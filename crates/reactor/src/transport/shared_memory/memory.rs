//! Memory that two processes share. It is sealed against another size, because who reads where a file has been cut
//! off is killed (SIGBUS). The peer may change every byte of it at any time, so bytes are copied out before they
//! are examined, and no reference to them is ever made.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Seals that fix the size and the seals themselves.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of shared memory, of a size that cannot change.
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone, and what it holds is reached by atomic words and copies only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `length` bytes of zeroed memory, and the descriptor with which a peer maps it.
    pub fn create(length: usize) -> io::Result<(Self, OwnedFd)> {
        let file = make_file()?;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file, length)?, file))
    }

    /// Maps a peer's memory. It is refused if its size is another or could be changed.
    pub fn of_peer(file: OwnedFd, length: usize) -> io::Result<Self> {
        let seals = fcntl_get_seals(&file).map_err(|_| refused("it is no memory that can be sealed"))?;
        if !seals.contains(SEALS) {
            return Err(refused("it is not sealed against another size"));
        }
        let there = fstat(&file)?.st_size;
        if u64::try_from(there) != Ok(length as u64) {
            return Err(refused(&format!("it has {there} bytes in place of {length}")));
        }
        Self::map(&file, length)
    }

    fn map(file: impl AsFd, length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses where, so that nothing else is there.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("the system maps memory at 0"))?;
        Ok(SharedMemory { start, length })
    }

    /// The word at an offset.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length, "words are aligned and within the memory");
        // SAFETY: it is aligned and within the mapping, which lives as long as `self`, and any bytes make a word.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: both are as long as that, and nothing of ours is in shared memory. The peer may look at the bytes or
        // change them meanwhile: then it reads what it has broken itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset).as_ptr(), bytes.len()) }
    }

    /// Copies bytes out; all of `target` is written.
    pub fn read(&self, offset: usize, target: &mut [MaybeUninit<u8>]) {
        self.check(offset, target.len());
        // SAFETY: both are as long as that, and nothing of ours is in shared memory. If the peer changes the bytes
        // meanwhile, others are copied; they are checked in the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.add(offset).as_ptr(),
                target.as_mut_ptr().cast(),
                target.len(),
            )
        }
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "the caller stays within the memory");
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more: all references to it are of `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping can be taken away");
    }
}

fn make_file() -> io::Result<OwnedFd> {
    let create = |flags| memfd_create("atoll-transport", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags);
    match create(MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know it; a later one may insist on it (vm.memfd_noexec).
        Err(rustix::io::Errno::INVAL) => Ok(create(MemfdFlags::empty())?),
        made => Ok(made?),
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer's shared memory is refused: {why}"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn why(file: OwnedFd) -> String {
        SharedMemory::of_peer(file, 8192).err().unwrap().to_string()
    }

    #[test]
    fn memory_that_can_change_its_size_is_refused() {
        let (memory, file) = SharedMemory::create(8192).unwrap();
        assert!(ftruncate(&file, 4096).is_err() && ftruncate(&file, 16384).is_err(), "it is sealed");
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err(), "the seals are sealed");
        let other = SharedMemory::of_peer(file, 8192).unwrap();
        memory.write(4000, b"shared");
        let mut copy = [MaybeUninit::uninit(); 6];
        other.read(4000, &mut copy);
        // SAFETY: all of it was written.
        assert_eq!(copy.map(|byte| unsafe { byte.assume_init() }), *b"shared");

        let unsealed = |flags| {
            let file = memfd_create("unsealed", flags).unwrap();
            ftruncate(&file, 8192).unwrap();
            file
        };
        assert!(why(unsealed(MemfdFlags::CLOEXEC)).contains("not sealed"));
        let partly = unsealed(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        fcntl_add_seals(&partly, SealFlags::GROW | SealFlags::SEAL).unwrap();
        assert!(why(partly).contains("not sealed"));
        assert!(why(SharedMemory::create(4096).unwrap().1).contains("it has 4096 bytes in place of 8192"));
        assert!(why(tempfile::tempfile().unwrap().into()).contains("no memory that can be sealed"));
        assert!(why(File::open("/dev/zero").unwrap().into()).contains("no memory that can be sealed"));
    }
}
