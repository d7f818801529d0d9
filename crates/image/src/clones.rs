//! Clones: images that begin as a snapshot of another one and share its data until they are written.

use std::collections::BTreeMap;

use atoll_cluster::{ClusterError, Transaction, keys};
use atoll_keys::{SecretKey, random_u64};
use atoll_types::PoolId;
use atoll_types::image_key::ImageKey;
use atoll_types::records::{
    ImageExport, ImageRecord, ImageStates, ImageWatcherRecord, ParentRecord, RECORD_FORMAT,
};

use crate::ImageError;
use crate::admin::{ImageAdmin, check_name, image_key_context, unix_ms};
use crate::flattening::refuse_moving;

/// Clones of clones, at most: a read may have to look at each.
const GENERATIONS_MAX: usize = 16;

/// The clients that a clone is kept to, because its parent is. An image open to all clients does not open its
/// clones.
fn restriction_of(parent: &ImageRecord) -> Option<ImageExport> {
    let clients = parent.export.as_ref().map(|export| export.clients.clone())?;
    let is_restricted = !clients.is_empty() && !clients.iter().any(|client| client == "*");
    is_restricted.then(|| ImageExport { clients, ..ImageExport::default() })
}

impl ImageAdmin {
    /// Makes an image that begins as a snapshot of another one; it takes no space until it is written, and has a
    /// key of its own. The snapshot stays as long as it has clones.
    pub async fn clone_snapshot(
        &self,
        name: &str,
        snapshot: &str,
        clone_name: &str,
        pool: Option<PoolId>,
        is_sealed: bool,
    ) -> Result<ImageRecord, ImageError> {
        check_name(clone_name)?;
        self.retried(name, || self.clone_once(name, snapshot, clone_name, pool, is_sealed)).await
    }

    async fn clone_once(
        &self,
        name: &str,
        snapshot: &str,
        clone_name: &str,
        pool: Option<PoolId>,
        is_sealed: bool,
    ) -> Result<ImageRecord, ImageError> {
        let (mut parent, revision) = self.get(name).await?;
        // Its snapshots are partly where they were before, which goes at the end, and a clone would not learn of that.
        refuse_moving(&parent)?;
        let (_, found) = self.get_snapshot(name, snapshot).await?;
        self.check_generations(&parent).await?;
        let key = if is_sealed { ImageKey::WrappedKey } else { ImageKey::UnsealedPermit };
        let states = ImageStates {
            parent: Some(ParentRecord {
                image_id: parent.id.clone(),
                image_name: name.into(),
                number: found.number,
                overlap_bytes: found.size_bytes,
            }),
            is_marked: !is_sealed,
            ..ImageStates::default()
        };
        let mut clone = ImageRecord {
            format: RECORD_FORMAT,
            id: format!("{:016x}", random_u64()),
            name: clone_name.into(),
            size_bytes: found.size_bytes,
            object_bytes: parent.object_bytes,
            pool: pool.unwrap_or(parent.pool),
            key: key(String::new()),
            attach_ids: Vec::new(),
            writer_generation: 0,
            changer: None,
            created_unix_ms: unix_ms(),
            states: Some(states),
            work: None,
            flattening: None,
            hold: None,
            // A clone gives no further client access to the parent's data.
            export: restriction_of(&parent),
            metadata: BTreeMap::new(),
        }
        .with_format();
        *clone.key.wrapped_mut() = self.keys.wrap(&image_key_context(&clone), &SecretKey::random()).await?;
        let snapshots = parent.states.iter_mut().flat_map(|states| states.snapshots.iter_mut());
        let of_clone = snapshots.filter(|snapshot| snapshot.number == found.number);
        of_clone.for_each(|snapshot| snapshot.clones.push(clone.id.clone()));
        let transaction = self
            .while_there_is(clone.pool)
            .await?
            .check(&keys::image(name), revision)
            .check(&keys::image(clone_name), 0)
            .put(&keys::image(name), &parent)?
            .put(&keys::image(clone_name), &clone)?;
        match self.cluster.transact(&transaction).await {
            Err(ClusterError::Conflict { .. }) if self.get(clone_name).await.is_ok() => {
                Err(ImageError::AlreadyExists(clone_name.into()))
            }
            result => {
                result?;
                Ok(clone)
            }
        }
    }

    pub(crate) async fn check_generations(&self, record: &ImageRecord) -> Result<(), ImageError> {
        let mut record = record.clone();
        for _ in 0..GENERATIONS_MAX {
            let Some(parent) = record.parent().cloned() else { return Ok(()) };
            record = self.find(&parent.image_id, &parent.image_name).await?.0;
        }
        Err(ImageError::Invalid(format!(
            "image '{}' is a clone of a clone {GENERATIONS_MAX} times over; flatten it first ('atoll image flatten')",
            record.name
        )))
    }

    /// The names of the clones of an image, by the names of their snapshots.
    pub async fn clones(&self, record: &ImageRecord) -> Result<Vec<(String, String)>, ImageError> {
        if record.snapshots().iter().all(|snapshot| snapshot.clones.is_empty()) {
            return Ok(Vec::new());
        }
        let names: BTreeMap<String, String> =
            self.list().await?.into_iter().map(|record| (record.id, record.name)).collect();
        let named = |id: &String| names.get(id).cloned().unwrap_or_else(|| format!("{id} (in the trash)"));
        let snapshots = record.snapshots().iter();
        Ok(snapshots
            .flat_map(|snapshot| snapshot.clones.iter().map(|id| (snapshot.name.clone(), named(id))))
            .collect())
    }

    /// Changes an image's record. If nothing shows its parent then, it is a clone no more, and its parent's snapshot
    /// need not stay for it.
    pub(crate) async fn change_clone(
        &self,
        name: &str,
        edit: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<ImageRecord, ImageError> {
        self.retried(name, || async {
            let (record, revision) = self.get(name).await?;
            self.change_clone_once(record, revision, Transaction::new(), &edit).await
        })
        .await
    }

    /// The same for changes that need an image without readers: `edit` gets the readers, and no new one enters
    /// until it is done.
    pub(crate) async fn change_unread_clone(
        &self,
        name: &str,
        edit: impl Fn(&mut ImageRecord, &[ImageWatcherRecord]) -> Result<(), ImageError>,
    ) -> Result<ImageRecord, ImageError> {
        self.retried(name, || async {
            let (record, revision) = self.get(name).await?;
            let readers = self.readers(&record.id).await?;
            let edit = |record: &mut ImageRecord| edit(record, &readers.present);
            self.change_clone_once(record, revision, readers.nobody_came(Transaction::new()), edit).await
        })
        .await
    }

    async fn change_clone_once(
        &self,
        mut record: ImageRecord,
        revision: i64,
        transaction: Transaction,
        edit: impl Fn(&mut ImageRecord) -> Result<(), ImageError>,
    ) -> Result<ImageRecord, ImageError> {
        let key = keys::image(&record.name);
        edit(&mut record)?;
        let mut transaction = transaction.check(&key, revision);
        if let Some(parent) = record.take_hidden_parent() {
            transaction = self.forget_clone(transaction, &parent, &record.id).await?;
        }
        let record = record.with_format();
        self.cluster.transact(&transaction.put(&key, &record)?).await?;
        Ok(record)
    }

    /// Adds to a transaction that a parent has a clone less. Doing it again does no harm.
    pub(crate) async fn forget_clone(
        &self,
        transaction: Transaction,
        parent: &ParentRecord,
        clone_id: &str,
    ) -> Result<Transaction, ImageError> {
        let (mut record, revision) = match self.find(&parent.image_id, &parent.image_name).await {
            Err(ImageError::NoSuchImage(_)) => return Ok(transaction),
            found => found?,
        };
        let snapshots = record.states.iter_mut().flat_map(|states| states.snapshots.iter_mut());
        // An image that was moved with its snapshots shows more than one.
        snapshots.for_each(|snapshot| snapshot.clones.retain(|clone| clone != clone_id));
        let key = keys::image(&record.name);
        Ok(transaction.check(&key, revision).put(&key, &record)?)
    }
}
