//! LUKS2 against the real `cryptsetup`, against hostile bytes, and against the clock.
//!
//! `cryptsetup` works on plain files here: nothing needs dm-crypt, root or a block device.
#![allow(clippy::unwrap_used)]

mod bulk_data;
mod cryptsetup;
mod hostile;
mod keyslots;
mod throughput;

fn fill_random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).unwrap();
}
