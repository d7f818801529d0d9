//! Checksums.

/// CRC-32C (Castagnoli, RFC 3720 section 12.1) of `bytes`, the checksum of every stored block,
/// log record and `crc`-mode frame.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64/NVME of pieces that come one after the other: a digest that is the same for ever, for
/// comparing copies, not against forgery.
pub struct Crc64(crc_fast::Digest);

impl Default for Crc64 {
    fn default() -> Self {
        Crc64(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }
}

impl Crc64 {
    /// Adds the next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The check of all pieces so far.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}
