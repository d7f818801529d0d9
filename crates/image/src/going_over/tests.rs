//! The writer of a moved image whose answer was lost.

use atoll_types::PoolId;

use super::*;
use crate::attach::take;
use crate::attach::tests::{World, world};
use crate::destination::Destination;

async fn moved(world: &World, is_sealed: bool) -> ImageRecord {
    let name = if is_sealed { "sealed" } else { "unsealed" };
    world.create(name, is_sealed).await;
    world.admin.begin_move(name, Destination { pool: PoolId(2), is_sealed }, None).await.unwrap()
}

async fn go_over(world: &World, moved: &ImageRecord, attach_id: &str) -> Result<Attachment, ImageError> {
    let purpose = Purpose::from("a writer");
    let lock = take_lock(&world.admin, moved, &purpose).await.unwrap();
    take_new_place(&world.admin, moved, attach_id, purpose, lock).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_goes_over_again_is_the_same_one() {
    let world = world().await;
    for is_sealed in [true, false] {
        let (moved, attach_id) = (moved(&world, is_sealed).await, new_attach_id());
        let first = go_over(&world, &moved, &attach_id).await.unwrap();
        let generation = first.record.writer_generation;
        // As if the answer had been lost.
        first.lock.release().await.unwrap();
        let again = go_over(&world, &moved, &attach_id).await.unwrap();
        assert_eq!(again.record.writer_generation, generation);
        again.lock.release().await.unwrap();
    }
}

/// It would seal under the other one's attachment, and write under its generation.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_goes_over_again_is_lost_when_another_has_come_meanwhile() {
    let world = world().await;
    for is_sealed in [true, false] {
        let (moved, attach_id) = (moved(&world, is_sealed).await, new_attach_id());
        go_over(&world, &moved, &attach_id).await.unwrap().lock.release().await.unwrap();
        let other = take(&world.admin, &moved.name, &"another".into(), refuse_unfinished).await.unwrap();
        other.lock.release().await.unwrap();
        let error = go_over(&world, &moved, &attach_id).await.err().expect("another one was there");
        assert!(matches!(error, ImageError::Lost(_)), "{error}");
        let (record, _) = world.admin.get(&moved.name).await.unwrap();
        assert_eq!(record.writer_generation, other.record.writer_generation);
    }
}
