//! The objects of a pool whose names begin with a prefix, PG by PG, also while PGs are split.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_types::{ListedObject, ObjectName, PgId, PoolId, ReadOutcome, ReadRequest};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::{ClientError, ObjectClient};

/// PGs that are listed at once.
const PGS_AT_ONCE: usize = 16;
/// Pause after which a newer cluster map may have come.
const MAP_CHANGE_PAUSE: Duration = Duration::from_millis(20);
/// Waits for a newer map without any answer, for a split that does not get into cluster state.
const WAITS_MAX: u32 = 1_000;

/// Access to the PGs of a pool.
pub trait PoolClient: ObjectClient {
    /// The PGs of a pool, those that were split off included, each with the pool's number of PGs as of its last
    /// split.
    fn pgs(&self, pool: PoolId) -> impl Future<Output = Result<Vec<(PgId, u32)>, ClientError>>;

    /// A read that is about a PG and not about one of its objects.
    fn read_pg(
        &self,
        pg: PgId,
        request: ReadRequest,
    ) -> impl Future<Output = Result<(ReadOutcome, Bytes), ClientError>>;

    /// Sets a fence in every PG of a pool: from then on, writes that carry a lower generation of this fence are
    /// refused.
    fn fence(&self, pool: PoolId, name: Bytes, generation: u64) -> impl Future<Output = Result<(), ClientError>>;

    /// Returns after `delay`.
    fn sleep(&self, delay: Duration) -> impl Future<Output = ()>;
}

/// A part of a pool that is still to be listed.
#[derive(Clone)]
struct Rest {
    pg: PgId,
    pg_num: u32,
    after: Option<ObjectName>,
}

/// Visits every object whose name begins with `prefix`, in no particular order across PGs and some at a time.
/// Each comes once. Objects that are made or removed meanwhile come or do not. Blocks are counted if
/// `counts_blocks`, which takes longer.
pub async fn visit_objects<E: From<ClientError>>(
    client: &impl PoolClient,
    pool: PoolId,
    prefix: &str,
    counts_blocks: bool,
    mut visit: impl AsyncFnMut(Vec<ListedObject>) -> Result<(), E>,
) -> Result<(), E> {
    let prefix = Bytes::copy_from_slice(prefix.as_bytes());
    let page = async |rest: Rest| {
        let request = ReadRequest::ObjectList {
            prefix: prefix.clone(),
            after: rest.after.clone(),
            counts_blocks,
            pg_num: Some(rest.pg_num),
        };
        let answer = client.read_pg(rest.pg, request).await;
        (rest, answer)
    };
    let whole = |(pg, pg_num)| Rest { pg, pg_num, after: None };
    let mut waiting: VecDeque<Rest> = client.pgs(pool).await?.into_iter().map(whole).collect();
    let mut under_way = FuturesUnordered::new();
    let mut waits = 0;
    loop {
        while under_way.len() < PGS_AT_ONCE
            && let Some(rest) = waiting.pop_front()
        {
            under_way.push(page(rest));
        }
        let Some((rest, answer)) = under_way.next().await else { return Ok(()) };
        match answer {
            Ok((ReadOutcome::ObjectPage { objects, next }, _)) => {
                if let Some(after) = next {
                    waiting.push_front(Rest { after: Some(after), ..rest });
                }
                visit(objects).await?;
                waits = 0;
            }
            Err(error) if error.failed_condition().is_some() && waits < WAITS_MAX => {
                waits += 1;
                client.sleep(MAP_CHANGE_PAUSE).await;
                waiting.extend(after_splits(rest, &client.pgs(pool).await?));
            }
            Err(error) => return Err(error.into()),
            Ok(_) => {
                let object = ObjectName::new(atoll_types::operation::PG_META_OBJECT).expect("the name is short");
                return Err(ClientError::UnexpectedAnswer { object }.into());
            }
        }
    }
}

/// Returns the rest of a PG that was split: its own, and those of the PGs that were split off, which have its
/// former objects.
fn after_splits(rest: Rest, pgs: &[(PgId, u32)]) -> Vec<Rest> {
    let Some((_, pg_num)) = pgs.iter().find(|(pg, _)| *pg == rest.pg) else { return Vec::new() };
    let numbers = std::iter::successors(Some(rest.pg_num), |number| Some(number * 2));
    let split_off = numbers.take_while(|number| number < pg_num).map(|number| Rest {
        pg: rest.pg.split_off(number),
        pg_num: number * 2,
        after: rest.after.clone(),
    });
    let mut rests: Vec<Rest> = split_off.collect();
    rests.push(Rest { pg_num: *pg_num, ..rest });
    rests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_split_group_covers_all_groups_split_from_it() {
        let pg = |index| PgId { pool: PoolId(1), index };
        let after = ObjectName::new("name");
        let rest = Rest { pg: pg(1), pg_num: 4, after: after.clone() };
        let rests = after_splits(rest.clone(), &[(pg(0), 4), (pg(1), 16), (pg(5), 16), (pg(9), 16)]);
        let found: Vec<_> = rests.iter().map(|rest| (rest.pg.index, rest.pg_num)).collect();
        // The PG that is split off first may have been split since: it says so itself.
        assert_eq!(found, [(5, 8), (9, 16), (1, 16)]);
        assert!(rests.iter().all(|rest| rest.after == after));
        assert_eq!(after_splits(rest.clone(), &[(pg(1), 4)]).len(), 1);
        assert_eq!(after_splits(rest, &[]).len(), 0);
    }
}
