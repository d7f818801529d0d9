//! Which reads must wait for which writes. A read may return committed data only, and the store
//! shows a write as soon as it is submitted. So a read waits while a write is in flight that it
//! would show.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::{ReadRequest, Touched};

/// Returns true if a read would show a write, which changed `touched`, to an object that existed before.
pub(crate) fn read_sees(request: &ReadRequest, touched: &Touched) -> bool {
    if touched.whole {
        return true;
    }
    match request {
        ReadRequest::Data { offset, length, .. } | ReadRequest::Extents { offset, length } => {
            let first = (offset / BLOCK_BYTES as u64) as u32;
            let end = (offset + u64::from(*length)).div_ceil(BLOCK_BYTES as u64) as u32;
            touched.block_ranges.iter().any(|&(start, count)| start < end && first < start + count)
        }
        ReadRequest::Stat => true,
        // It may show writes in flight.
        ReadRequest::ObjectList { .. } => false,
        ReadRequest::OmapGet { key } => touched.omap_keys.contains(key),
        ReadRequest::OmapList { prefix, .. } => touched.omap_keys.iter().any(|key| key.starts_with(prefix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn reads_wait_only_for_what_they_would_see() {
        let touched =
            Touched { whole: false, block_ranges: vec![(4, 2)], omap_keys: vec![Bytes::from_static(b"o/key")] };
        let data = |block: u64, blocks: u32| {
            ReadRequest::checked_data(block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u32)
        };
        assert!(read_sees(&data(5, 1), &touched));
        assert!(read_sees(&data(0, 5), &touched));
        assert!(!read_sees(&data(0, 4), &touched));
        assert!(!read_sees(&data(6, 9), &touched));
        assert!(read_sees(&ReadRequest::OmapGet { key: Bytes::from_static(b"o/key") }, &touched));
        assert!(!read_sees(&ReadRequest::OmapGet { key: Bytes::from_static(b"o/other") }, &touched));
        assert!(read_sees(&data(9, 1), &Touched { whole: true, ..Touched::default() }));
    }
}
