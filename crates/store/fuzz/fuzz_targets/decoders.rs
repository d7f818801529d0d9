//! Everything of the store that decodes bytes of a device; docs/internals/testing.md says how to run it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| atoll_store::fuzz::decode(input));
