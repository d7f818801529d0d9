//! The record of an image decides if it is sealed, and cannot be forged without the key service.

use std::sync::Arc;

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, keys};
use atoll_keys::{KeyError, LocalKeys};
use atoll_types::PoolId;
use atoll_types::image_key::ImageKey;
use atoll_types::records::{FailureDomain, PoolRecord, RECORD_FORMAT, Redundancy};

use super::*;

pub struct World {
    pub admin: ImageAdmin,
    _server: EmbeddedServer,
    _directory: tempfile::TempDir,
}

fn pool(id: u32) -> PoolRecord {
    PoolRecord {
        format: RECORD_FORMAT,
        id: PoolId(id),
        name: format!("pool{id}"),
        redundancy: Redundancy::Replicated { size: 3, min_size: 2 },
        pg_num: 1,
        pg_num_first: 0,
        failure_domain: FailureDomain::Osd,
        device_class: None,
    }
}

pub async fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
    let address = server.local_addr();
    let state = ClusterClient::connect(&ConnectOptions::new([format!("http://{address}")])).await.unwrap();
    for id in [1, 2] {
        state.put(&keys::pool(PoolId(id)), &pool(id)).await.unwrap();
    }
    let keys = LocalKeys::create(&directory.path().join("kms.json")).unwrap();
    World { admin: ImageAdmin::new(state, Arc::new(keys)), _server: server, _directory: directory }
}

impl World {
    pub async fn create(&self, name: &str, is_sealed: bool) -> ImageRecord {
        self.admin.create(name, 1 << 20, PoolId(1), is_sealed).await.unwrap()
    }

    /// Changes a record as a writer of cluster state can.
    async fn forge(&self, name: &str, record: &ImageRecord) {
        self.admin.cluster.put(&keys::image(name), record).await.unwrap();
    }

    async fn take(&self, name: &str) -> Result<ImageRecord, ImageError> {
        let taken = take(&self.admin, name, &"a test".into(), crate::resize::refuse_unfinished).await?;
        taken.lock.release().await.unwrap();
        Ok(taken.record)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_keep_their_sealing_over_attachments() {
    let world = world().await;
    for (name, is_sealed) in [("sealed", true), ("unsealed", false)] {
        let made = world.create(name, is_sealed).await;
        assert_eq!(made.key.is_sealed(), is_sealed);
        for generation in 1..3 {
            let taken = world.take(name).await.unwrap();
            assert_eq!((taken.key.clone(), taken.writer_generation), (made.key.clone(), generation));
            // Only what seals needs a key for every attachment.
            assert_eq!(taken.attach_ids.len() as u64, if is_sealed { generation } else { 0 });
        }
    }
    let error = world.admin.destroy_key("unsealed").await.unwrap_err();
    assert!(error.to_string().contains("is not sealed"), "{error}");
    world.admin.destroy_key("sealed").await.unwrap();
    assert!(matches!(world.take("sealed").await, Err(ImageError::KeyDestroyed(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_switched_over_does_not_open() {
    let world = world().await;
    for (name, is_sealed) in [("sealed", true), ("unsealed", false)] {
        let record = world.create(name, is_sealed).await;
        let wrapped = record.key.wrapped().to_owned();
        let key = if is_sealed { ImageKey::UnsealedPermit(wrapped) } else { ImageKey::WrappedKey(wrapped) };
        world.forge(name, &ImageRecord { key, ..record }).await;
        let error = world.take(name).await.unwrap_err();
        assert!(matches!(error, ImageError::Key(KeyError::NotAuthentic { .. })), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_for_one_image_of_one_name() {
    let world = world().await;
    world.create("sealed", true).await;
    let unsealed = world.create("unsealed", false).await;
    world.forge("sealed", &unsealed).await;
    let error = world.take("sealed").await.unwrap_err();
    assert!(error.to_string().contains("is that of image 'unsealed'"), "{error}");
    world.forge("sealed", &ImageRecord { name: "sealed".into(), ..unsealed.clone() }).await;
    let error = world.take("sealed").await.unwrap_err();
    assert!(matches!(error, ImageError::Key(KeyError::NotAuthentic { .. })), "{error}");
    assert_eq!(world.take("unsealed").await.unwrap().id, unsealed.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copier_that_has_to_give_way_while_it_attaches_changes_nothing() {
    let world = world().await;
    let record = world.create("disk", true).await;
    let copier = Purpose::copier("a copier");
    for is_gone in [false, true] {
        let lock = take_lock(&world.admin, &record, &copier).await.unwrap();
        let check = crate::resize::refuse_unfinished;
        let writer = take(&world.admin, "disk", &"a writer".into(), check).await.unwrap();
        let generation = writer.record.writer_generation;
        let mut held = Some(writer.lock);
        if is_gone {
            held.take().unwrap().release().await.unwrap();
        }
        let add = |record: &mut ImageRecord| add_attach_id(record, &new_attach_id(), &copier);
        let error = attach_locked(&world.admin, "disk", &copier, lock, add).await.err().expect("the lock is lost");
        assert!(matches!(error, ImageError::InUse { .. } | ImageError::Lost(_)), "{error}");
        assert_eq!(world.admin.get("disk").await.unwrap().0.writer_generation, generation);
        // What the writer seals must open.
        assert_eq!(world.admin.get("disk").await.unwrap().0.attach_ids.len() as u64, generation);
        if let Some(lock) = held {
            lock.release().await.unwrap();
        }
    }
}
