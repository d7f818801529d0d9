//! A record in the index by which a GET that takes longer than the grace period keeps its data. It is renewed
//! during the GET, so that a GET whose gateway died keeps nothing for long.

use std::time::Duration;

use atoll_types::{Condition, Mutation};
use tokio::sync::oneshot;

use crate::index::Index;
use crate::names::hold_key;

/// Keeps data from the collector until it is dropped.
pub(crate) struct Hold {
    _is_read: oneshot::Sender<()>,
}

impl Hold {
    /// A hold of the data with this id, which is in a record of the shard that was read just now. There is no
    /// trace of it if it does not last.
    pub(crate) fn new(index: &Index, shard: u32, data_id: [u8; 16], grace: Duration) -> Self {
        let (is_read, mut ended) = oneshot::channel();
        let (index, key) = (index.clone(), hold_key(&data_id));
        tokio::spawn(async move {
            let mut renewals: u64 = 0;
            let mut pause = grace / 2;
            while tokio::time::timeout(pause, &mut ended).await.is_err() {
                let value = renewals.to_le_bytes().to_vec().into();
                let set = vec![Mutation::OmapSet { key: key.clone(), value }];
                if let Err(error) = index.change_shard(shard, vec![Condition::ObjectExists], set).await {
                    tracing::warn!(bucket = index.bucket.record.name, %error, "a long GET cannot hold its data");
                }
                renewals += 1;
                pause = grace / 4;
            }
            if renewals == 0 {
                return;
            }
            let remove = vec![Mutation::OmapRemove { key }];
            match index.change_shard(shard, vec![Condition::ObjectExists], remove).await {
                Err(error) if error.failed_condition().is_none() => {
                    tracing::debug!(%error, "a hold stays until a collector finds it without renewal");
                }
                _ => {}
            }
        });
        Hold { _is_read: is_read }
    }
}
