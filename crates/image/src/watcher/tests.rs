//! Readers, and removals or changes of their data.

use atoll_client::{ObjectClient, PoolClient};
use atoll_types::{Mutation, PoolId, Refusal};

use super::*;
use crate::attach::take;
use crate::attach::tests::{World, world};
use crate::destination::Destination;
use crate::lock::{Fenced, Purpose, fence_name, not_fenced};
use crate::memory_client::MemoryClient;
use crate::names::object_name;
use crate::resize::refuse_unfinished;

/// How often a reader and a remover meet.
const MEETINGS: usize = 40;

async fn snapshot(world: &World, name: &str) {
    world.admin.take_snapshot(&MemoryClient::new(1), "disk", name).await.unwrap();
}

/// Begins to read the image, or a snapshot of it.
async fn read(admin: &ImageAdmin, name: &str, snapshot: Option<&str>) -> Result<Watcher, ImageError> {
    let (record, _) = admin.get(name).await?;
    let number = match snapshot {
        Some(snapshot) => Some(admin.get_snapshot(name, snapshot).await?.1.number),
        None => None,
    };
    let watched = Watched::new(&record, number, record.shown_parent().as_ref());
    Watcher::begin(admin, vec![watched], "a test").await
}

async fn attach(world: &World, purpose: impl Into<Purpose>) -> Result<crate::held_lock::HeldLock, ImageError> {
    take(&world.admin, "disk", &purpose.into(), refuse_unfinished).await.map(|attached| attached.lock)
}

/// In either order, a reader never has removed data. The later the round, the later the removal begins.
async fn meet(
    world: &World,
    round: usize,
    removed: impl AsyncFn(&ImageAdmin) -> Result<(), ImageError>,
    of: Option<&str>,
) -> bool {
    let later = async {
        tokio::time::sleep(Duration::from_micros(200) * round as u32).await;
        removed(&world.admin).await
    };
    let (reader, removal) = tokio::join!(read(&world.admin, "disk", of), later);
    if let (Ok(_), Ok(())) = (&reader, &removal) {
        panic!("removed under a reader");
    }
    let has_read = reader.is_ok();
    if let Ok(reader) = reader {
        reader.end().await.unwrap();
    }
    has_read
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_not_removed_under_a_reader_who_comes_at_that_moment() {
    let world = world().await;
    world.create("disk", true).await;
    let mut read = 0;
    for round in 0..MEETINGS {
        if world.admin.get("disk").await.unwrap().0.snapshot("one").is_none() {
            snapshot(&world, "one").await;
        }
        let remove = async |admin: &ImageAdmin| admin.remove_snapshots("disk", &["one".to_owned()]).await;
        read += usize::from(meet(&world, round, remove, Some("one")).await);
    }
    println!("{read} of {MEETINGS} readers came first");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_not_trashed_or_moved_under_a_reader_who_comes_at_that_moment() {
    let world = world().await;
    world.create("disk", true).await;
    for round in 0..MEETINGS {
        if round % 2 == 0 {
            let trash = async |admin: &ImageAdmin| admin.trash("disk", 1_000_000).await.map(drop);
            if !meet(&world, round, trash, None).await {
                world.admin.restore("disk", None).await.unwrap();
            }
        } else {
            let move_away = async |admin: &ImageAdmin| {
                admin.begin_move("disk", Destination { pool: PoolId(2), is_sealed: true }, None).await.map(drop)
            };
            if !meet(&world, round, move_away, None).await {
                world.admin.cancel_move(&MemoryClient::new(1), "disk", None).await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_read_itself_is_not_written() {
    let world = world().await;
    world.create("disk", true).await;
    let reader = read(&world.admin, "disk", None).await.unwrap();
    let client = MemoryClient::new(1);
    let error = attach(&world, "a writer").await.err().expect("it is read");
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    let error = Fenced::take(&world.admin, &client, "disk", "shrinking").await.err().expect("it is read");
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    // What changes nothing may be done.
    snapshot(&world, "one").await;
    attach(&world, Purpose::copier("copying")).await.unwrap().release().await.unwrap();
    assert!(reader.is_entered() && !reader.is_gone());
    reader.end().await.unwrap();

    let writer = attach(&world, "a writer").await.unwrap();
    let error = read(&world.admin, "disk", None).await.err().expect("it is written");
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    read(&world.admin, "disk", Some("one")).await.unwrap().end().await.unwrap();
    writer.release().await.unwrap();
}

/// Without its lock it may write on, and it takes the lock again later.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_was_cut_off_does_not_write_under_a_reader() {
    let (world, client) = (world().await, MemoryClient::new(1));
    world.create("disk", true).await;
    let writer = attach(&world, "a writer").await.unwrap();
    let (written, _) = world.admin.get("disk").await.unwrap();
    let write = async || {
        let (object, fence) = (object_name(&written.id, 0), vec![not_fenced(&written)]);
        client.change(written.pool, object, fence, vec![Mutation::Create]).await
    };
    client.fence(written.pool, fence_name(&written.id), written.writer_generation).await.unwrap();
    writer.cut_off().await;
    write().await.unwrap();
    let reader = read(&world.admin, "disk", None).await.unwrap();
    let raised = reader.raised().expect("nobody has fenced the writer off");
    client.fence(raised.pool, fence_name(&raised.id), raised.writer_generation).await.unwrap();
    assert!(matches!(write().await.unwrap_err().refusal(), Some(Refusal::Fenced { .. })));
    assert!(!writer.takes_again().await, "it is read");
    // Nothing was changed, so the reader may go on when its own entry has ended.
    cut_off(&reader).await;
    assert!(reader.shared.enter().await.unwrap());
    reader.end().await.unwrap();
    attach(&world, "the next writer").await.unwrap().release().await.unwrap();
}

/// The lease of a reader that is cut off ends in cluster state.
async fn cut_off(reader: &Watcher) {
    reader.keeper.abort();
    *reader.shared.entered_until.lock().unwrap() = None;
    reader.shared.lease.lock().await.take().unwrap().revoke().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_reader_resumes_only_if_nothing_was_removed_or_changed() {
    let world = world().await;
    world.create("disk", true).await;
    snapshot(&world, "one").await;
    let of_snapshot = read(&world.admin, "disk", Some("one")).await.unwrap();
    let of_image = read(&world.admin, "disk", None).await.unwrap();
    for reader in [&of_snapshot, &of_image] {
        cut_off(reader).await;
        assert!(!reader.is_entered() && !reader.is_gone(), "it reads nothing as long as that is not known");
        assert!(reader.shared.enter().await.unwrap() && reader.is_entered());
        cut_off(reader).await;
    }
    attach(&world, "a writer").await.unwrap().release().await.unwrap();
    assert!(!of_image.shared.enter().await.unwrap(), "it was written");
    assert!(of_snapshot.shared.enter().await.unwrap());
    cut_off(&of_snapshot).await;
    world.admin.remove_snapshots("disk", &["one".to_owned()]).await.unwrap();
    assert!(!of_snapshot.shared.enter().await.unwrap(), "it was removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_a_clone_keeps_the_clones_data() {
    let world = world().await;
    world.create("disk", true).await;
    snapshot(&world, "one").await;
    world.admin.clone_snapshot("disk", "one", "clone", None, true).await.unwrap();
    let (clone, _) = world.admin.get("clone").await.unwrap();
    let parent = clone.shown_parent().unwrap();
    let (disk, _) = world.admin.get("disk").await.unwrap();
    let watched = vec![Watched::new(&clone, None, Some(&parent)), Watched::new(&disk, Some(parent.number), None)];
    let reader = Watcher::begin(&world.admin, watched, "a test").await.unwrap();
    // A copier has copied everything, of which the reader knows nothing.
    world.admin.begin_flatten("clone", None).await.unwrap();
    assert!(world.admin.end_flatten("clone", &clone.id).await.unwrap());
    let remove = async || world.admin.remove_snapshots("disk", &["one".to_owned()]).await;
    let error = remove().await.unwrap_err();
    assert!(matches!(error, ImageError::InUse { .. }), "{error}");
    reader.end().await.unwrap();
    remove().await.unwrap();
}
