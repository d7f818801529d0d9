//! Making freshly written data visible: the change of the index that names it.

use atoll_metrics::current_span::carry;
use atoll_objects::ClientError;
use atoll_types::{Condition, Mutation};

use super::Unfinished;
use crate::error::GatewayError;
use crate::index::{Index, Named};

impl Index {
    /// Like [`Index::change`], for a change that makes freshly written data visible, and takes it in or
    /// beside the index if it is small. If it is certain that the change did not happen, the data comes back with the
    /// error, and is removed unless it is published after all. Runs to its end even if the client goes
    /// away meanwhile.
    pub(crate) async fn publish(
        &self,
        key: &str,
        mut conditions: Vec<Condition>,
        mut mutations: Vec<Mutation>,
        mut data: Unfinished,
    ) -> Result<(), (GatewayError, Option<Unfinished>)> {
        mutations.extend(data.index_change());
        let own = conditions.len();
        conditions.extend(data.condition());
        let (index, key) = (self.clone(), key.to_owned());
        let publishing = tokio::spawn(carry(async move {
            let changed = index.change_with(&key, conditions, mutations, Some(&mut data as &mut Named)).await;
            match changed {
                // The conditions behind those of the caller are of the data: it was given up, or is gone.
                Err(GatewayError::ConditionFailed(number)) if number >= own => {
                    Err((GatewayError::Abandoned, None))
                }
                Err(error) if error.is_definite() => Err((error, Some(data))),
                Err(error) => {
                    data.keep_unclear(&index, &key);
                    Err((error, None))
                }
                Ok(()) => {
                    data.keep();
                    Ok(())
                }
            }
        }));
        publishing.await.unwrap_or(Err((ClientError::ShutDown.into(), None)))
    }
}
