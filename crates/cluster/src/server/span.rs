//! Which keys a request means: one key, a half-open range, or everything from a key on.

use std::ops::Bound;

/// A set of neighbouring keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// One key.
    One(Vec<u8>),
    /// From the first key up to, not including, the second.
    Range(Vec<u8>, Vec<u8>),
    /// This key and everything behind it.
    From(Vec<u8>),
}

impl Span {
    /// As the API writes it: no end means one key, an end of one zero byte means no end.
    pub fn new(key: &[u8], range_end: &[u8]) -> Span {
        match range_end {
            [] => Span::One(key.to_vec()),
            [0] => Span::From(key.to_vec()),
            end => Span::Range(key.to_vec(), end.to_vec()),
        }
    }

    /// Returns true if no key can be in it.
    pub fn is_empty(&self) -> bool {
        matches!(self, Span::Range(start, end) if start >= end)
    }

    /// Returns true if `key` is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Span::One(one) => one == key,
            Span::Range(start, end) => start.as_slice() <= key && key < end.as_slice(),
            Span::From(start) => start.as_slice() <= key,
        }
    }

    /// Bounds for an ordered map; only for a span that is not empty.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Span::One(one) => (Bound::Included(one), Bound::Included(one)),
            Span::Range(start, end) => (Bound::Included(start), Bound::Excluded(end)),
            Span::From(start) => (Bound::Included(start), Bound::Unbounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_have_their_special_meanings() {
        assert!(Span::new(b"a", b"").contains(b"a"));
        assert!(!Span::new(b"a", b"").contains(b"ab"));
        assert!(Span::new(b"a", b"\0").contains(b"zz"));
        assert!(!Span::new(b"b", b"\0").contains(b"a"));
        assert!(Span::new(b"a", b"b").contains(b"az"));
        assert!(!Span::new(b"a", b"b").contains(b"b"));
        assert!(Span::new(b"b", b"a").is_empty());
    }
}
