//! Taking, removing and renaming snapshots, and rolling back to one.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use atoll_client::PoolClient;
use atoll_cluster::{ClusterError, keys};
use atoll_types::records::{ImageRecord, ImageStates, ImageWork, SnapshotRecord};
use atoll_types::{Condition, Mutation};
use futures::{StreamExt, TryStreamExt, stream};

use crate::ImageError;
use crate::admin::{ImageAdmin, check_name, unix_ms};
use crate::flattening::refuse_moving;
use crate::keeping::keep_state;
use crate::lock::{Fenced, Purpose, being_read, is_abandoned, not_fenced};
use crate::names::{Part, kept_name, object_name};
use crate::objects::{CHANGES_IN_FLIGHT, list_parts, remove_objects};
use crate::resize::refuse_unfinished;

/// Longest wait for a writer to finish the writes that it had begun before it knew of a snapshot.
const WRITER_PATIENCE: Duration = Duration::from_secs(30);
const WRITER_POLL: Duration = Duration::from_millis(10);
/// Age of a pending snapshot after which its command is gone: none takes that long.
const PENDING_AT_MOST: Duration = Duration::from_secs(3600);
const SNAPSHOTS_MAX: usize = 10_000;

impl ImageAdmin {
    /// Takes a snapshot: the image as it is at some moment of this call. Everything that was acknowledged before
    /// is in it. Its duration does not depend on the image's size, and writes continue meanwhile.
    pub async fn take_snapshot(
        &self,
        client: &impl PoolClient,
        name: &str,
        snapshot: &str,
    ) -> Result<SnapshotRecord, ImageError> {
        let announced = self.announce_snapshot(name, snapshot).await?;
        let in_force = self.wait_until_kept(client, name, announced.number).await;
        let settled = self.settle_snapshot(name, announced.number, in_force.is_ok()).await?;
        in_force?;
        settled.ok_or_else(|| no_such_snapshot(name, snapshot))
    }

    /// The snapshot gets its number. It counts when its writer has said that it keeps states for it.
    async fn announce_snapshot(&self, name: &str, snapshot: &str) -> Result<SnapshotRecord, ImageError> {
        check_name(snapshot)?;
        let (record, _) = self.change(name, |record| add_snapshot(record, snapshot)).await?;
        Ok(record.snapshot(snapshot).expect("it was just added").clone())
    }

    /// The snapshot counts from now on, or is none.
    pub(crate) async fn settle_snapshot(
        &self,
        name: &str,
        number: u64,
        is_taken: bool,
    ) -> Result<Option<SnapshotRecord>, ImageError> {
        let settled = self.change(name, |record| {
            let states = record.states.get_or_insert_with(ImageStates::default);
            if is_taken {
                let taken = states.snapshots.iter_mut().find(|snapshot| snapshot.number == number);
                taken.into_iter().for_each(|snapshot| snapshot.is_pending = false);
            } else {
                states.snapshots.retain(|snapshot| snapshot.number != number);
                states.needs_trimming = true;
            }
            Ok(())
        });
        let (record, _) = settled.await?;
        Ok(record.snapshots().iter().find(|snapshot| snapshot.number == number).cloned())
    }

    /// Returns when no write is in flight that began before its writer knew of this snapshot. A writer that has
    /// lost the image without knowing is fenced off.
    pub(crate) async fn wait_until_kept(
        &self,
        client: &impl PoolClient,
        name: &str,
        number: u64,
    ) -> Result<(), ImageError> {
        let (record, _) = self.get(name).await?;
        let deadline = Instant::now() + WRITER_PATIENCE;
        loop {
            match self.lock(&record.id).await? {
                Some((lock, _)) if is_abandoned(&lock) => {
                    return Fenced::take(self, client, &record.name, Purpose::keeper("taking a snapshot"))
                        .await?
                        .release()
                        .await;
                }
                None => match Fenced::take(self, client, &record.name, Purpose::keeper("taking a snapshot")).await
                {
                    Ok(held) => return held.release().await,
                    // A writer has come first, and will say what it keeps.
                    Err(ImageError::InUse { .. }) => {}
                    Err(error) => return Err(error),
                },
                Some((lock, _)) if lock.kept_number >= number => return Ok(()),
                Some((lock, _)) if Instant::now() > deadline => {
                    return Err(ImageError::Invalid(format!(
                        "{} (process {} on {}), which writes to image '{}', has not finished its writes within \
                         {} s; 'atoll health' may show the cause, and 'atoll image lock break' takes the image \
                         from it",
                        lock.purpose,
                        lock.process_id,
                        lock.host,
                        record.name,
                        WRITER_PATIENCE.as_secs()
                    )));
                }
                Some(_) => {}
            }
            tokio::time::sleep(WRITER_POLL).await;
        }
    }

    /// The record of an image and of one of its snapshots, which can be read.
    pub async fn get_snapshot(
        &self,
        name: &str,
        snapshot: &str,
    ) -> Result<(ImageRecord, SnapshotRecord), ImageError> {
        let (record, _) = self.get(name).await?;
        let found = record.snapshot(snapshot).cloned().ok_or_else(|| no_such_snapshot(name, snapshot))?;
        if found.is_pending {
            return Err(ImageError::Invalid(format!(
                "snapshot '{snapshot}' of image '{name}' is being taken; if the command that took it is gone, remove it"
            )));
        }
        Ok((record, found))
    }

    /// Returns true if an image was changed since a snapshot of this number.
    pub async fn is_changed_since(
        &self,
        client: &impl PoolClient,
        name: &str,
        number: u64,
    ) -> Result<bool, ImageError> {
        let (record, _) = self.get(name).await?;
        let is_newer = |part: &Part| part.kept_for.is_some_and(|kept_for| kept_for >= number);
        Ok(!list_parts(client, record.pool, &record.id, is_newer).await?.is_empty())
    }

    /// Gives a snapshot another name.
    pub async fn rename_snapshot(&self, name: &str, snapshot: &str, new_name: &str) -> Result<(), ImageError> {
        check_name(new_name)?;
        let renamed = self.change(name, |record| {
            if record.snapshot(new_name).is_some() {
                return Err(ImageError::AlreadyExists(format!("{name}@{new_name}")));
            }
            let mut snapshots = record.states.iter_mut().flat_map(|states| states.snapshots.iter_mut());
            let found = snapshots.find(|found| found.name == snapshot);
            found.ok_or_else(|| no_such_snapshot(name, snapshot))?.name = new_name.into();
            Ok(())
        });
        renamed.await.map(drop)
    }

    /// Removes snapshots. [`ImageAdmin::trim`] removes data that only they needed. A flattened clone whose last
    /// snapshots with a parent they were has none any more.
    pub async fn remove_snapshots(&self, name: &str, snapshots: &[String]) -> Result<(), ImageError> {
        let removed = self.change_unread_clone(name, |record, readers| {
            for reader in readers {
                let is_read = |snapshot: &&SnapshotRecord| {
                    snapshots.contains(&snapshot.name) && Some(snapshot.number) == reader.number
                };
                if let Some(snapshot) = record.snapshots().iter().find(is_read) {
                    return Err(being_read(&format!("{name}@{}", snapshot.name), reader.clone()));
                }
            }
            refuse_moving(record)?;
            if let Some(ImageWork::RollBack { .. }) = record.work {
                return refuse_unfinished(record);
            }
            for snapshot in snapshots {
                let found = record.snapshot(snapshot).ok_or_else(|| no_such_snapshot(name, snapshot))?;
                if !found.clones.is_empty() {
                    return Err(ImageError::HasClones { name: name.into(), snapshot: snapshot.clone() });
                }
            }
            let states = record.states.get_or_insert_with(ImageStates::default);
            states.snapshots.retain(|snapshot| !snapshots.contains(&snapshot.name));
            states.needs_trimming = true;
            Ok(())
        });
        removed.await.map(drop)
    }

    /// Removes the states of objects that no snapshot needs any more. `progress` gets the numbers of removed
    /// states and of all that are to be removed. It can be interrupted, and done by several at once.
    pub async fn trim(
        &self,
        client: &impl PoolClient,
        name: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        loop {
            let (record, revision) = self.get(name).await?;
            // While an image goes back, there are states of which no snapshot tells.
            let needs_it = |states: &&ImageStates| states.needs_trimming && !record.is_going_back();
            let Some(states) = record.states.as_ref().filter(needs_it) else {
                return Ok(());
            };
            remove_unneeded(client, &record, states, progress).await?;
            let mut trimmed = record.clone();
            trimmed.states.iter_mut().for_each(|states| states.needs_trimming = false);
            match self.cluster.compare_and_swap(&keys::image(name), revision, &trimmed.with_format()).await {
                // Perhaps another snapshot was removed: look again.
                Err(ClusterError::Conflict { .. }) => {}
                result => return result.map(drop).map_err(ImageError::from),
            }
        }
    }

    /// Trims all images that need it, after snapshots of commands that are gone were given up. Returns the names of
    /// those where it has failed, and why.
    pub async fn trim_all(&self, client: &impl PoolClient) -> Result<Vec<(String, ImageError)>, ImageError> {
        let (mut failed, now_ms) = (Vec::new(), self.lapse_unix_ms().await?);
        let needs_it = |record: &ImageRecord| {
            record.snapshots().iter().any(|snapshot| is_given_up(snapshot, now_ms))
                || record.states.as_ref().is_some_and(|states| states.needs_trimming)
        };
        for record in self.list().await?.into_iter().filter(needs_it) {
            let trimmed = match self.give_up_snapshots(&record, now_ms).await {
                Ok(()) => self.trim(client, &record.name, &|_, _| {}).await,
                Err(error) => Err(error),
            };
            match trimmed {
                Ok(()) | Err(ImageError::NoSuchImage(_)) => {}
                Err(error) => failed.push((record.name, error)),
            }
        }
        Ok(failed)
    }

    async fn give_up_snapshots(&self, record: &ImageRecord, now_ms: u64) -> Result<(), ImageError> {
        if !record.snapshots().iter().any(|snapshot| is_given_up(snapshot, now_ms)) {
            return Ok(());
        }
        let given_up = self.change_clone(&record.name, |record| {
            let states = record.states.get_or_insert_with(ImageStates::default);
            states.snapshots.retain(|snapshot| !is_given_up(snapshot, now_ms));
            states.needs_trimming = true;
            Ok(())
        });
        given_up.await?;
        tracing::info!("gave up a snapshot of image '{}' whose command is gone", record.name);
        Ok(())
    }

    /// Rolls an image back to a snapshot; it must have no writer meanwhile. Later snapshots stay. `progress` gets
    /// the numbers of examined objects and of all. If it is interrupted, it must be done again before the image
    /// can be used.
    pub async fn roll_back(
        &self,
        client: &impl PoolClient,
        name: &str,
        snapshot: &str,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(), ImageError> {
        let (record, found) = self.get_snapshot(name, snapshot).await?;
        refuse_moving(&record)?;
        let held = Fenced::take(self, client, name, "rolling back").await?;
        let done = roll_back_held(client, &held, &found, progress).await;
        held.release().await?;
        done
    }
}

async fn roll_back_held(
    client: &impl PoolClient,
    held: &Fenced,
    snapshot: &SnapshotRecord,
    progress: &dyn Fn(u64, u64),
) -> Result<(), ImageError> {
    let number = snapshot.number;
    let work = ImageWork::RollBack { number };
    let begun = held.change(|record| {
        refuse_moving(record)?;
        if record.work.as_ref().is_some_and(|begun| *begun != work) {
            return refuse_unfinished(record);
        }
        // It was looked for before the image was taken. As long as the work is not done it is not removed.
        if !record.snapshots().iter().any(|found| found.number == number) {
            return Err(no_such_snapshot(&record.name, &snapshot.name));
        }
        record.work = Some(work.clone());
        Ok(())
    });
    let record = begun.await?;
    roll_objects_back(client, &record, number, progress).await?;
    let ended = held.change(|record| {
        let snapshot = record.snapshots().iter().find(|snapshot| snapshot.number == number).cloned();
        if let Some(snapshot) = snapshot {
            record.size_bytes = snapshot.size_bytes;
            if let Some(parent) = record.states.as_mut().and_then(|states| states.parent.as_mut()) {
                parent.overlap_bytes = snapshot.overlap_bytes;
            }
        }
        record.work = None;
        Ok(())
    });
    ended.await.map(drop)
}

fn is_given_up(snapshot: &SnapshotRecord, now_unix_ms: u64) -> bool {
    let until_ms = snapshot.created_unix_ms.saturating_add(PENDING_AT_MOST.as_millis() as u64);
    snapshot.is_pending && until_ms < now_unix_ms
}

/// Adds a snapshot that does not count yet.
pub(crate) fn add_snapshot(record: &mut ImageRecord, snapshot: &str) -> Result<(), ImageError> {
    refuse_unfinished(record)?;
    refuse_moving(record)?;
    let name = &record.name;
    if record.snapshot(snapshot).is_some() {
        return Err(ImageError::AlreadyExists(format!("{name}@{snapshot}")));
    }
    if record.snapshots().len() >= SNAPSHOTS_MAX {
        return Err(ImageError::Invalid(format!("image '{name}' has {SNAPSHOTS_MAX} snapshots already")));
    }
    let (size_bytes, overlap_bytes) = (record.size_bytes, record.overlap_bytes());
    let states = record.states.get_or_insert_with(ImageStates::default);
    states.newest += 1;
    states.snapshots.push(SnapshotRecord {
        number: states.newest,
        name: snapshot.into(),
        size_bytes,
        overlap_bytes,
        created_unix_ms: unix_ms(),
        is_pending: true,
        clones: Vec::new(),
    });
    Ok(())
}

/// Removes the states that no snapshot of these needs.
pub(crate) async fn remove_unneeded(
    client: &impl PoolClient,
    record: &ImageRecord,
    states: &ImageStates,
    progress: &dyn Fn(u64, u64),
) -> Result<(), ImageError> {
    let live: BTreeSet<u64> = states.snapshots.iter().map(|snapshot| snapshot.number).collect();
    let parts = list_parts(client, record.pool, &record.id, |part| part.kept_for.is_some()).await?;
    let unneeded = parts.into_iter().flat_map(|(index, (_, kept))| {
        let numbers = unneeded(&kept, &live, states.newest).into_iter();
        numbers.map(move |number| kept_name(&record.id, index, number)).collect::<Vec<_>>()
    });
    let unneeded: Vec<_> = unneeded.collect();
    let all = unneeded.len() as u64;
    let mut done = 0;
    remove_objects(client, record.pool, unneeded, None, || {
        done += 1;
        progress(done, all);
    })
    .await
}

/// Rolls all objects back to a snapshot. The caller has fenced all writers off.
pub(crate) async fn roll_objects_back(
    client: &impl PoolClient,
    record: &ImageRecord,
    number: u64,
    progress: &dyn Fn(u64, u64),
) -> Result<(), ImageError> {
    let kept_number = record.kept_number().expect("it has the snapshot");
    let fence = not_fenced(record);
    let parts = list_parts(client, record.pool, &record.id, |_| true).await?;
    let all = parts.len() as u64;
    let changes = parts.into_iter().map(|(index, (has_object, kept))| {
        let state = kept.into_iter().find(|kept_for| *kept_for >= number);
        roll_object_back(client, record, &fence, kept_number, index, has_object, state)
    });
    let mut changes = stream::iter(changes).buffer_unordered(CHANGES_IN_FLIGHT);
    let mut done = 0;
    while changes.try_next().await?.is_some() {
        done += 1;
        progress(done, all);
    }
    Ok(())
}

/// Rolls one object back. `state` is the number for which its state at the snapshot is kept; without one, it has
/// not changed since. A repetition does no harm: the first time has kept the states that later snapshots need.
async fn roll_object_back(
    client: &impl PoolClient,
    record: &ImageRecord,
    fence: &Condition,
    kept_number: u64,
    index: u64,
    has_object: bool,
    state: Option<u64>,
) -> Result<(), ImageError> {
    let Some(state) = state else { return Ok(()) };
    if state != kept_number {
        keep_state(client, record.pool, &record.id, index, kept_number, Some(fence)).await?;
    }
    let source = kept_name(&record.id, index, state);
    let (kept_bytes, _) = client.stat(record.pool, source.clone()).await?;
    let mutation = match (kept_bytes, has_object) {
        (0, false) => return Ok(()),
        (0, true) => Mutation::Remove,
        _ => Mutation::CloneFrom { source },
    };
    let object = object_name(&record.id, index);
    Ok(client.change(record.pool, object, vec![fence.clone()], vec![mutation]).await?)
}

/// Which of the numbers for which an object's states are kept, lowest first, no snapshot needs: those that are the
/// state of none. Drafts have the number 0. States kept for snapshots that are newer than the list of them stay.
fn unneeded(kept: &[u64], live: &BTreeSet<u64>, newest: u64) -> Vec<u64> {
    let mut before = 0;
    let mut unneeded = Vec::new();
    for &number in kept.iter().take_while(|number| **number <= newest) {
        if number > before && live.range(before + 1..=number).next().is_some() {
            before = number;
        } else {
            unneeded.push(number);
        }
    }
    unneeded
}

fn no_such_snapshot(name: &str, snapshot: &str) -> ImageError {
    ImageError::NoSuchSnapshot { name: name.into(), snapshot: snapshot.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::world;
    use crate::memory_client::MemoryClient;

    /// Its command was killed, and no other process would ever complete or remove it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_of_a_command_that_is_gone_is_given_up() {
        let world = world().await;
        world.create("disk", true).await;
        for (snapshot, age_ms) in [("old", 2 * 3_600_000), ("new", 1_000)] {
            let announced = world.admin.change("disk", |record| {
                add_snapshot(record, snapshot)?;
                let states = record.states.as_mut().expect("it has a snapshot");
                states.snapshots.last_mut().expect("it was added").created_unix_ms -= age_ms;
                Ok(())
            });
            announced.await.unwrap();
        }
        assert!(world.admin.trim_all(&MemoryClient::new(1)).await.unwrap().is_empty());
        let (record, _) = world.admin.get("disk").await.unwrap();
        let names: Vec<&str> = record.snapshots().iter().map(|snapshot| &snapshot.name[..]).collect();
        assert_eq!(names, ["new"]);
        assert!(!record.states.unwrap().needs_trimming);
    }

    /// Its states may be gone: objects would get content that belongs to other snapshots.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_roll_back_to_a_snapshot_that_was_removed_meanwhile_changes_nothing() {
        let (world, client) = (world().await, MemoryClient::new(1));
        world.create("disk", true).await;
        for snapshot in ["one", "two"] {
            world.admin.take_snapshot(&client, "disk", snapshot).await.unwrap();
        }
        let (_, found) = world.admin.get_snapshot("disk", "one").await.unwrap();
        let held = Fenced::take(&world.admin, &client, "disk", "rolling back").await.unwrap();
        world.admin.remove_snapshots("disk", &["one".to_owned()]).await.unwrap();
        let error = roll_back_held(&client, &held, &found, &|_, _| {}).await.unwrap_err();
        assert!(matches!(error, ImageError::NoSuchSnapshot { .. }), "{error}");
        assert_eq!(world.admin.get("disk").await.unwrap().0.work, None);
        held.release().await.unwrap();
    }

    /// It may have stood still for long, and the image be another's by now.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_command_that_has_lost_the_image_ends_nothing() {
        let (world, client) = (world().await, MemoryClient::new(1));
        world.create("disk", true).await;
        let held = Fenced::take(&world.admin, &client, "disk", "rolling back").await.unwrap();
        world.admin.break_lock(&client, "disk").await.unwrap();
        let error = held.change(|_| panic!("it is not its holder any more")).await.unwrap_err();
        assert!(matches!(error, ImageError::Lost(_)), "{error}");
        held.release().await.unwrap();
    }

    #[test]
    fn a_state_is_needed_by_the_snapshots_since_the_one_before() {
        let live = |numbers: &[u64]| numbers.iter().copied().collect::<BTreeSet<u64>>();
        assert_eq!(unneeded(&[2, 5, 7], &live(&[1, 4, 7]), 7), [0_u64; 0]);
        assert_eq!(unneeded(&[2, 5, 7], &live(&[4]), 7), [2, 7]);
        // Snapshot 1 needs the state that was kept for 5 once that for 2 is none.
        assert_eq!(unneeded(&[5, 7], &live(&[1]), 7), [7]);
        assert_eq!(unneeded(&[2, 5, 7], &live(&[]), 7), [2, 5, 7]);
        assert_eq!(unneeded(&[2, 9], &live(&[]), 7), [2], "9 is of a snapshot that is not known here");
        assert_eq!(unneeded(&[0, 3], &live(&[3]), 7), [0], "a draft");
        assert_eq!(unneeded(&[], &live(&[3]), 7), [0_u64; 0]);
    }
}
