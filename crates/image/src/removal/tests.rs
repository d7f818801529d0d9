//! Removals that meet.

use super::*;
use crate::attach::tests::world;
use crate::memory_client::MemoryClient;

/// The command and a server in the background may remove the same image; both are told that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_second_is_done_too() {
    let world = world().await;
    world.create("twice", true).await;
    let removed = world.admin.trash("twice", 0).await.unwrap();
    let client = MemoryClient::new(1);
    let purge = || world.admin.purge(&client, &removed.image.id, &|_, _| {});
    let (one, two) = tokio::join!(purge(), purge());
    one.unwrap();
    two.unwrap();
    assert!(world.admin.removed().await.unwrap().is_empty());
    purge().await.unwrap();
    assert!(matches!(world.admin.remove(&client, "twice", &|_, _| {}).await, Err(ImageError::NoSuchImage(_))));
}
