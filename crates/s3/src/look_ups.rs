//! Look-ups of unknown buckets and access keys. Without a budget, and for a recent miss, the copy that watches keep
//! is the answer: cluster state is not asked.

use std::time::Instant;

use atoll_connection_limits::{ALL_BUDGET, LookUp, LookUps};

use crate::asked;

/// Kind of a name.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    Bucket,
    AccessKey,
}

impl Wanted {
    fn name(self, name: &str) -> String {
        match self {
            Wanted::Bucket => format!("bucket {name}"),
            Wanted::AccessKey => format!("key {name}"),
        }
    }
}

/// Look-ups of a gateway.
pub(crate) struct UnheardNames(LookUps);

impl UnheardNames {
    pub fn new() -> Self {
        UnheardNames(LookUps::new(Some(ALL_BUDGET)))
    }

    /// Looks a name up that was not heard of, unless it is taken for missing.
    pub async fn look_up<T, E>(
        &self,
        wanted: Wanted,
        name: &str,
        ask: impl Future<Output = Result<Option<T>, E>>,
    ) -> Result<Option<T>, E> {
        let address = asked::address();
        let name = wanted.name(name);
        if self.0.begin(&name, address, Instant::now()) != LookUp::Ask {
            return Ok(None);
        }
        let found = ask.await?;
        if found.is_none() {
            self.0.missed(&name, Instant::now());
        }
        Ok(found)
    }

    /// Forgets that it was missing: it was made.
    pub fn forget(&self, wanted: Wanted, name: &str) {
        self.0.forget(&wanted.name(name));
    }
}
