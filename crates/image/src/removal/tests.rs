//! Removals that meet.

use atoll_types::coordination::ClockRecord;

use super::*;
use crate::attach::tests::{World, world};
use crate::memory_client::MemoryClient;

/// The command and a server in the background may remove the same image; both succeed.
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

/// Two commands that remove one image: neither gets an error that asks for a repetition.
#[tokio::test(flavor = "multi_thread")]
async fn two_removers_of_one_image_are_both_answered() {
    let world = world().await;
    let client = MemoryClient::new(1);
    for round in 0..8 {
        let name = format!("twice{round}");
        world.create(&name, true).await;
        let remove = || world.admin.remove(&client, &name, &|_, _| {});
        let (one, two) = tokio::join!(remove(), remove());
        for answer in [one, two] {
            assert!(matches!(answer, Ok(()) | Err(ImageError::NoSuchImage(_))), "{answer:?}");
        }
        assert!(matches!(world.admin.get(&name).await, Err(ImageError::NoSuchImage(_))));
    }
    assert!(world.admin.removed().await.unwrap().is_empty());
}

/// A record that others change meanwhile is read again.
#[tokio::test(flavor = "multi_thread")]
async fn images_whose_records_change_meanwhile_are_removed_and_renamed() {
    let world = world().await;
    for round in 0..20 {
        let (name, new_name) = (format!("old{round}"), format!("new{round}"));
        world.create(&name, true).await;
        let pairs = [("key".to_owned(), Some(round.to_string()))];
        let (renamed, set) =
            tokio::join!(world.admin.rename(&name, &new_name), world.admin.set_metadata(&name, &pairs));
        renamed.unwrap();
        assert!(matches!(set, Ok(_) | Err(ImageError::NoSuchImage(_))), "{set:?}");
        let (removed, set) =
            tokio::join!(world.admin.trash(&new_name, 0), world.admin.set_metadata(&new_name, &pairs));
        removed.unwrap();
        assert!(matches!(set, Ok(_) | Err(ImageError::NoSuchImage(_))), "{set:?}");
    }
}

/// Sets the cluster's time, as the coordinator does, by the time of this process.
async fn set_clock(world: &World, ahead_ms: i64) {
    let unix_ms = unix_ms().saturating_add_signed(ahead_ms);
    let clock = ClockRecord { format: RECORD_FORMAT, unix_ms };
    world.admin.cluster.put(keys::CLOCK, &clock).await.unwrap();
}

/// A clock that was set wrong would empty the trash for good.
#[tokio::test(flavor = "multi_thread")]
async fn the_trash_keeps_what_it_has_by_the_clusters_clock() {
    const HOUR_MS: i64 = 3_600_000;
    let (world, client) = (world().await, MemoryClient::new(1));
    world.create("disk", true).await;
    // The clock of this process is an hour ahead, by which the time of the image is over.
    set_clock(&world, -HOUR_MS).await;
    let removed = world.admin.trash("disk", 1_000).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    assert!(world.admin.purge_due(&client).await.unwrap().is_empty());
    let error = world.admin.remove(&client, "disk", &|_, _| {}).await.unwrap_err();
    assert!(matches!(error, ImageError::NoSuchImage(_)), "{error}");
    assert_eq!(world.admin.restore(&removed.image.id, None).await.unwrap().name, "disk");
    // Clocks differ by a little.
    set_clock(&world, -30_000).await;
    world.admin.trash("disk", 1).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    assert!(world.admin.purge_due(&client).await.unwrap().is_empty());
    assert!(world.admin.removed().await.unwrap().is_empty(), "its time is over");

    // The clock of this process is an hour behind: by all others the time would be over at once.
    world.create("disk", true).await;
    set_clock(&world, HOUR_MS).await;
    let removed = world.admin.trash("disk", 1_000_000).await.unwrap();
    assert!(removed.purge_unix_ms >= unix_ms() + HOUR_MS as u64 + 990_000);
}
