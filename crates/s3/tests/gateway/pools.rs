//! Pools for each kind of the gateway's data.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{self, DATA_POOL, POOL, TestGateway, start, start_with_data_pool};
use atoll_types::PoolId;

const OTHER_POOL: PoolId = PoolId(3);

async fn step(gateway: &TestGateway, arguments: &[&str]) -> String {
    support::step(gateway, "pools", arguments).await
}

/// The pools of the data and of the indexes.
fn pools(gateway: &TestGateway) -> (Vec<PoolId>, Vec<PoolId>) {
    let of = |prefix| gateway.client.pools(prefix).into_iter().collect();
    (of("s3d/"), of("s3i/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn data_goes_to_the_data_pool_and_indexes_do_not() {
    let gateway = start_with_data_pool(|config| config.garbage_grace = Duration::ZERO).await;
    step(&gateway, &["create_and_fill"]).await;
    assert_eq!(pools(&gateway), (vec![DATA_POOL], vec![POOL]));
    assert_eq!(gateway.client.names("s3d/").len(), 3 + 3 + 2);
    // What is replaced and deleted goes from where it is, whoever removes it.
    step(&gateway, &["replace_and_delete"]).await;
    assert_eq!(gateway.gateway.collect_garbage().await.unwrap().records, 2);
    assert!(gateway.client.names("s3d/").is_empty());
    step(&gateway, &["fill_and_delete_the_bucket"]).await;
    assert!(gateway.client.names("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_may_name_its_pool_and_copies_go_between_pools() {
    let gateway = start_with_data_pool(|_| {}).await;
    gateway.add_coded_pool(OTHER_POOL, "cold", 1 << 20);
    gateway.add_coded_pool(PoolId(4), "disks", 4 << 10);
    step(&gateway, &["copy_between_pools"]).await;
    assert_eq!(pools(&gateway), (vec![DATA_POOL, OTHER_POOL], vec![POOL]));
    // The copies need nothing of where they came from.
    step(&gateway, &["empty_and_delete", "warm"]).await;
    assert_eq!(pools(&gateway), (vec![OTHER_POOL], vec![POOL]));
    step(&gateway, &["copies_are_there"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_data_pool_everything_is_in_one() {
    let gateway = start(|config| config.data_pool = Some("data".into())).await;
    step(&gateway, &["create_first"]).await;
    assert_eq!(pools(&gateway), (vec![POOL], vec![POOL]));
    // One that is made later is for new buckets; the others stay where they are.
    gateway.add_coded_pool(DATA_POOL, "data", 64 << 10);
    step(&gateway, &["create_second"]).await;
    assert_eq!(gateway.client.pools("s3d/"), BTreeSet::from([POOL]));
    step(&gateway, &["put_into_second"]).await;
    assert_eq!(pools(&gateway), (vec![POOL, DATA_POOL], vec![POOL]));
}
