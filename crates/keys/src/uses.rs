//! Uses of key services: the key, the purpose, and the number. The audit log takes them from here.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::{KeyError, WrappedBy};

/// Uses that are counted apart until they are taken. More are counted together.
const USES_MAX: usize = 1_024;
/// Name for keys and purposes that are counted together.
const OTHERS: &str = "others";

/// How often a key was used for something, since the last time that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyUse {
    /// `wrap`, `unwrap`, `rewrap`, `create`, `rotate` or `destroy`.
    pub use_of_key: &'static str,
    /// The key and its version, as wrapped secrets name it: `transit:NAME:v2`, or `local:ID`.
    pub key: String,
    /// Purpose of the wrapped secret, such as `image 0123`.
    pub purpose: String,
    /// How often.
    pub uses: u64,
    /// As many of them failed.
    pub failures: u64,
}

type Name = (&'static str, String, String);

static USES: Mutex<BTreeMap<Name, (u64, u64)>> = Mutex::new(BTreeMap::new());

/// Takes the noted uses.
pub fn take_uses() -> Vec<KeyUse> {
    let taken = std::mem::take(&mut *USES.lock().unwrap_or_else(PoisonError::into_inner));
    let told =
        |((use_of_key, key, purpose), (uses, failures))| KeyUse { use_of_key, key, purpose, uses, failures };
    taken.into_iter().map(told).collect()
}

/// Returns the key that a wrapped secret names.
pub(crate) fn key_of(wrapped: &str) -> String {
    match WrappedBy::parse(wrapped) {
        Some(WrappedBy { service, key_name, version }) if key_name.is_empty() => format!("{service}:{version}"),
        Some(WrappedBy { service, key_name, version }) => format!("{service}:{key_name}:{version}"),
        None => "unknown".into(),
    }
}

/// Notes that a key was used.
pub(crate) fn note<T>(use_of_key: &'static str, key: String, purpose: &str, outcome: &Result<T, KeyError>) {
    let mut uses = USES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut name = (use_of_key, key, purpose.to_owned());
    if uses.len() >= USES_MAX && !uses.contains_key(&name) {
        name = (use_of_key, OTHERS.into(), OTHERS.into());
    }
    let (all, failures) = uses.entry(name).or_default();
    *all += 1;
    *failures += u64::from(outcome.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since all of the process have one list.
    #[test]
    fn uses_are_summed_and_none_is_silent() {
        for _ in 0..3 {
            note("unwrap", key_of("transit:project:vault:v2:abc"), "image uses", &Ok(()));
        }
        let failed: Result<(), _> = Err(KeyError::NoSuchKey { key_id: "x".into() });
        note("unwrap", key_of("transit:project:vault:v2:abc"), "image uses", &failed);
        note("unwrap", key_of("rubbish"), "image uses", &failed);
        (0..10 * USES_MAX)
            .for_each(|number| note("wrap", key_of("local:ab:cd"), &format!("uses {number}"), &Ok(())));
        let taken = take_uses();
        let project =
            taken.iter().find(|one| one.key == "transit:project:v2" && one.purpose == "image uses").unwrap();
        assert_eq!((project.uses, project.failures), (4, 1));
        assert!(taken.iter().any(|one| one.key == "unknown" && one.failures == 1));
        assert!(taken.len() <= USES_MAX + 8, "{}", taken.len());
        let wraps =
            taken.iter().filter(|one| one.use_of_key == "wrap" && (one.key == "local:ab" || one.key == OTHERS));
        assert!(wraps.map(|one| one.uses).sum::<u64>() >= 10 * USES_MAX as u64, "each is counted");
    }
}
