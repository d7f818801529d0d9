//! The log of a PG takes few bytes, however much its writes touch.

use atoll_types::limits::{PG_LOG_BYTES, PG_LOG_ENTRIES, PG_LOG_ENTRIES_MIN};
use atoll_types::{LogEntry, Mutation};

use crate::driver::{Driver, PG};

fn entry_bytes(entry: &LogEntry) -> u64 {
    (size_of::<LogEntry>() + entry.object.as_str().len() + entry.touched.memory_bytes()) as u64
}

fn log(driver: &Driver) -> Vec<LogEntry> {
    driver.store.log(PG).cloned().collect()
}

/// Writes that touch `keys` keys each.
fn write(driver: &mut Driver, count: usize, keys: u32) {
    for number in 0..count {
        let key = |index: u32| Mutation::OmapRemove { key: format!("{number:01000}{index:010}").into() };
        driver.submit("object", (0..keys).map(key).collect(), Vec::new());
        if number % 16 == 0 {
            driver.run();
        }
    }
    driver.run();
}

#[test]
fn a_log_of_large_entries_is_short_and_comes_back_as_it_was() {
    let mut driver = Driver::new(1);
    driver.set_omap("object", "first", vec![1]);
    write(&mut driver, PG_LOG_ENTRIES + 100, 0);
    assert_eq!(driver.store.log(PG).count(), PG_LOG_ENTRIES, "small ones are as many as ever");
    // Some: those that are still there are small.
    write(&mut driver, 200, 3);
    let bytes: u64 = driver.store.log(PG).map(entry_bytes).sum();
    assert!(bytes <= PG_LOG_BYTES, "{bytes} bytes");
    write(&mut driver, PG_LOG_ENTRIES, 3);
    assert_eq!(driver.store.log(PG).count(), PG_LOG_ENTRIES_MIN, "and no fewer than members need");
    let before = log(&driver);
    driver.store.check_invariants();
    driver.checkpoint();
    driver.reopen();
    assert_eq!(log(&driver), before);
    driver.store.check_invariants();
}
