//! Snapshots of several images at one instant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use atoll_client::PoolClient;
use atoll_keys::random_u64;
use atoll_types::records::{ImageHold, ImageRecord, SnapshotRecord};
use futures::future::try_join_all;

use crate::ImageError;
use crate::admin::{ImageAdmin, check_name};
use crate::flattening::refuse_moving;
use crate::lock::{Fenced, Purpose};
use crate::resize::refuse_unfinished;
use crate::snapshots::add_snapshot;

/// Time after which a writer that holds its writes back resumes by itself.
const HOLD_AT_MOST: Duration = Duration::from_secs(6);
/// How often one looks whether all do.
const HOLD_POLL: Duration = Duration::from_millis(2);
/// Images at once: etcd takes 128 changes in a transaction.
const IMAGES_MAX: usize = 100;

/// The images of a group while their snapshots are taken.
#[derive(Default)]
struct Group {
    /// Names the hold of the writers.
    token: String,
    /// Those whose writers hold their writes back.
    written: Vec<String>,
    /// Images without a writer, locked.
    idle: Vec<Fenced>,
    /// Records as they were last seen, with their revisions.
    known: BTreeMap<String, (ImageRecord, i64)>,
}

impl ImageAdmin {
    /// Takes snapshots of several images at one instant: no write of any of them is acknowledged between them.
    /// Their writers hold their writes back for some milliseconds. `names` are pairs of images and names of
    /// snapshots, each image at most once.
    pub async fn take_snapshots_together(
        &self,
        client: &impl PoolClient,
        names: &[(String, String)],
    ) -> Result<Vec<SnapshotRecord>, ImageError> {
        check_group(names)?;
        let begun = Instant::now();
        let mut group = Group { token: format!("{:016x}", random_u64()), ..Group::default() };
        let announced = match self.hold_all(client, names, &mut group).await {
            Ok(()) => self.announce_together(names, &group).await,
            Err(error) => Err(error),
        };
        let has_taken_long = begun.elapsed() > HOLD_AT_MOST / 2;
        if announced.is_err() && !group.written.is_empty() {
            self.let_go(&group.written, &group.token).await?;
        }
        for held in group.idle {
            held.release().await?;
        }
        let announced = announced?;
        let mut result = Ok(());
        // A writer that went on by itself may have written before the snapshots had their numbers.
        if has_taken_long {
            result = Err(ImageError::Invalid(format!(
                "it took more than {} ms to have all images hold still, which is too long; try again",
                (HOLD_AT_MOST / 2).as_millis()
            )));
        }
        for ((name, _), snapshot) in names.iter().zip(&announced) {
            if result.is_ok() && group.written.contains(name) {
                result = self.wait_until_kept(client, name, snapshot.number).await;
            }
        }
        let mut snapshots = Vec::new();
        for ((name, _), snapshot) in names.iter().zip(&announced) {
            snapshots.extend(self.settle_snapshot(name, snapshot.number, result.is_ok()).await?);
        }
        result.map(|()| snapshots)
    }

    /// Has the writers of all images hold their writes back. Those without a writer are locked.
    async fn hold_all(
        &self,
        client: &impl PoolClient,
        names: &[(String, String)],
        group: &mut Group,
    ) -> Result<(), ImageError> {
        let mut waiting = Vec::new();
        for (name, snapshot) in names {
            let (record, _) = self.get(name).await?;
            refuse_moving(&record)?;
            if record.snapshot(snapshot).is_some() {
                return Err(ImageError::AlreadyExists(format!("{name}@{snapshot}")));
            }
            match self.live_lock(&record.id).await? {
                Some(_) => waiting.push(record),
                None => {
                    group.idle.push(Fenced::take(self, client, name, Purpose::keeper("taking a snapshot")).await?);
                    group.known.insert(name.clone(), self.get(name).await?);
                }
            }
        }
        group.written = waiting.iter().map(|record| record.name.clone()).collect();
        if group.written.is_empty() {
            return Ok(());
        }
        let hold = ImageHold { token: group.token.clone(), at_most_ms: HOLD_AT_MOST.as_millis() as u64 };
        let held = self.change_together(&group.written, |_, record| {
            refuse_unfinished(record)?;
            refuse_moving(record)?;
            record.hold = Some(hold.clone());
            Ok(())
        });
        let (records, revision) = held.await?;
        group.known.extend(records.into_iter().map(|record| (record.name.clone(), (record, revision))));
        self.wait_until_held(waiting, &group.token).await
    }

    /// Returns when the writers of all images hold their writes back. Clients wait meanwhile, and until the snapshots
    /// have their numbers: whatever is asked of cluster state here counts.
    async fn wait_until_held(&self, mut waiting: Vec<ImageRecord>, token: &str) -> Result<(), ImageError> {
        let deadline = Instant::now() + HOLD_AT_MOST / 2;
        loop {
            let locks = try_join_all(waiting.iter().map(|record| self.lock(&record.id))).await?;
            let mut still = Vec::new();
            for (record, lock) in waiting.into_iter().zip(locks) {
                match lock {
                    Some((lock, _)) if lock.held_token.as_deref() == Some(token) => {}
                    Some(_) if Instant::now() < deadline => still.push(record),
                    _ => {
                        return Err(ImageError::Invalid(format!(
                            "the writer of image '{}' does not hold its writes back; is it being taken over, or of an \
                             earlier release?",
                            record.name
                        )));
                    }
                }
            }
            if still.is_empty() {
                return Ok(());
            }
            waiting = still;
            tokio::time::sleep(HOLD_POLL).await;
        }
    }

    /// Gives all snapshots their numbers at once; writers continue, and keep states for them. Refused if a writer
    /// may have continued before: another has the image, or another command holds it.
    async fn announce_together(
        &self,
        names: &[(String, String)],
        group: &Group,
    ) -> Result<Vec<SnapshotRecord>, ImageError> {
        let images: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
        let known: Vec<_> = images.iter().map(|name| group.known.get(name).cloned()).collect();
        let announced = self.change_known(&images, &known, |index, record| {
            let is_held = record.hold.take().is_some_and(|hold| hold.token == group.token);
            if !is_held && group.written.contains(&record.name) {
                return Err(ImageError::Invalid(format!(
                    "the writer of image '{}' does not hold its writes back any more: another one has the image, or \
                     another command takes snapshots of it; try again",
                    record.name
                )));
            }
            add_snapshot(record, &names[index].1)
        });
        let (records, _) = announced.await?;
        let newest = |record: &ImageRecord| record.snapshots().last().cloned();
        Ok(records.iter().filter_map(newest).collect())
    }

    async fn let_go(&self, names: &[String], token: &str) -> Result<(), ImageError> {
        let let_go = self.change_together(names, |_, record| {
            record.hold.take_if(|hold| hold.token == token);
            Ok(())
        });
        let_go.await.map(drop)
    }
}

fn check_group(names: &[(String, String)]) -> Result<(), ImageError> {
    if names.len() > IMAGES_MAX {
        return Err(ImageError::Invalid(format!(
            "snapshots of up to {IMAGES_MAX} images can be taken at one instant, and not of {}",
            names.len()
        )));
    }
    let mut images = BTreeSet::new();
    for (name, snapshot) in names {
        check_name(snapshot)?;
        if !images.insert(name) {
            return Err(ImageError::Invalid(format!(
                "image '{name}' is named twice: one snapshot has all of an instant"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::world;

    /// Writes would be between the snapshots of one instant.
    #[tokio::test(flavor = "multi_thread")]
    async fn snapshots_of_writers_that_another_has_let_go_are_not_of_one_instant() {
        let world = world().await;
        let names = ["a", "b"].map(|name| (name.to_owned(), "one".to_owned())).to_vec();
        let images = ["a", "b"].map(str::to_owned);
        for image in &images {
            world.create(image, true).await;
        }
        let hold = async |token: &str| {
            let hold = ImageHold { token: token.into(), at_most_ms: 1 };
            let held = world.admin.change_together(&images, |_, record| {
                record.hold = Some(hold.clone());
                Ok(())
            });
            held.await.unwrap()
        };
        let (records, revision) = hold("1").await;
        let known = records.into_iter().map(|record| (record.name.clone(), (record, revision)));
        let group =
            Group { token: "1".into(), written: images.to_vec(), known: known.collect(), ..Group::default() };
        hold("2").await;
        let error = world.admin.announce_together(&names, &group).await.unwrap_err();
        assert!(error.to_string().contains("does not hold"), "{error}");
        for image in &images {
            let (record, _) = world.admin.get(image).await.unwrap();
            assert!(record.snapshots().is_empty() && record.hold.is_some_and(|hold| hold.token == "2"));
        }
        let group = Group { token: "2".into(), known: Default::default(), ..group };
        assert_eq!(world.admin.announce_together(&names, &group).await.unwrap().len(), 2);
    }
}
