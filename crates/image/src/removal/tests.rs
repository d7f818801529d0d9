//! Removals that meet.

use super::*;
use crate::attach::tests::world;
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
