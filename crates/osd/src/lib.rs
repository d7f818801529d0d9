//! osd
