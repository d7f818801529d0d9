//! image

pub mod nbd;
