//! Moves of images with their snapshots, within histories: the image is written, its writer dies and its snapshots are
//! read while it is copied.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use atoll_types::records::{ImageRecord, ImageStates, SnapshotRecord};

use super::flattening::AtRate;
use super::{BLOCK, Contents, History, Image, Objects, POOL, values, visit_objects};
use crate::flatten::CopyControl;
use crate::moved_states::MovedState;
use crate::names::image_prefix;
use crate::objects::remove_objects;
use crate::snapshots::remove_unneeded;
use crate::state::State;

/// Copies until this was asked for a number of times.
pub(super) struct Sometimes(pub Cell<u64>);

impl CopyControl for Sometimes {
    fn is_wanted(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() > 0
    }

    fn bytes_per_second(&self) -> Option<u64> {
        None
    }

    fn looked_at(&self, _: u64, _: u64) {}
}

impl<C: Objects> History<C> {
    /// The states that the writer of a moved image copies.
    pub(super) fn moved_states(&self, image: usize) -> Vec<MovedState> {
        let Image { record, parent, is_moving, .. } = &self.images[image];
        let Some((old, ..)) = parent.filter(|_| *is_moving && !record.snapshots().is_empty()) else {
            return Vec::new();
        };
        let state = |snapshot: &SnapshotRecord| MovedState {
            number: snapshot.number,
            overlap_bytes: snapshot.overlap_bytes,
        };
        self.images[old].record.snapshots().iter().map(state).collect()
    }

    /// Moves an image that has no clones.
    pub(super) async fn move_image(&mut self, image: usize) {
        if self.images[image].snapshots.keys().any(|number| self.clones_of(image, *number)) {
            return;
        }
        self.begin_move(image).await;
        // Readers that have opened snapshots at any time read them until the end.
        let mut opened = self.opened(image).await;
        for _ in 0..self.random.below(3) {
            let volume = self.volume(image).await;
            match self.random.below(2) {
                0 => self.interrupt(volume.copy_from_parent(&AtRate(None))).await,
                _ => {
                    let some = Sometimes(Cell::new(self.random.below(12)));
                    let copied = volume.copy_from_parent(&some);
                    futures::future::join(copied, self.change_meanwhile(image)).await.0.unwrap();
                }
            }
            drop(volume);
            // What is under way of a process that was interrupted is fenced off by the next one.
            self.images[image].volume = None;
            let dies = self.random.below(3) == 0;
            self.change(image, dies).await;
            self.verify_image(image).await;
            opened.extend(self.opened(image).await);
            if self.random.below(3) == 0 {
                return self.go_back(image, opened).await;
            }
        }
        self.die_before_the_parent_is_hidden(image).await;
        let volume = self.volume(image).await;
        let copied = async {
            assert!(volume.copy_from_parent(&AtRate(Some(1 << 20))).await.unwrap());
            volume.drop_parent().await;
        };
        futures::future::join(copied, self.change_meanwhile(image)).await;
        for (state, contents) in &opened {
            let found = values(&state.read_blocks(0, contents.len() as u64 * BLOCK).await.unwrap());
            assert_eq!(found, *contents, "who opened snapshot {:?} while the image was moved", state.number);
        }
        drop(opened);
        self.end_move(image).await;
        self.verify_image(image).await;
    }

    /// Changes the image at some moments while it is copied.
    pub(super) async fn change_meanwhile(&mut self, image: usize) {
        for _ in 0..1 + self.random.below(4) {
            for _ in 0..self.random.below(30) {
                self.client.sleep(Duration::ZERO).await;
            }
            self.change(image, false).await;
        }
    }

    /// The image becomes one in another place, and the old one goes to the end of the list.
    async fn begin_move(&mut self, image: usize) {
        self.take_over(image).await;
        let id = self.new_id();
        let is_sealed = self.random.below(2) == 0;
        let old_place = self.images.len();
        let overlap_bytes = self.images[image].parent.map_or(0, |(_, _, blocks)| blocks * BLOCK);
        let old = &mut self.images[image].record;
        let states = old.states.as_mut().unwrap();
        let before = states.snapshots.clone();
        states.newest += 1;
        let number = states.newest;
        states.snapshots.push(SnapshotRecord {
            number,
            name: "moved".into(),
            size_bytes: old.size_bytes,
            overlap_bytes,
            created_unix_ms: 0,
            is_pending: false,
            clones: Vec::new(),
        });
        let old = self.images[image].record.clone();
        let shown = |snapshot: SnapshotRecord| SnapshotRecord { overlap_bytes: snapshot.size_bytes, ..snapshot };
        let states = ImageStates {
            newest: number,
            snapshots: before.into_iter().map(shown).collect(),
            is_marked: !is_sealed,
            ..ImageStates::default()
        };
        let key = Self::key_for(is_sealed);
        let record = ImageRecord { id, key, writer_generation: 0, states: Some(states), ..old };
        let moved = Image {
            contents: self.images[image].contents.clone(),
            snapshots: self.images[image].snapshots.clone(),
            parent: Some((old_place, number, record.size_bytes / BLOCK)),
            attach_count: 0,
            volume: None,
            is_moving: true,
            left: None,
            record,
        };
        let old = std::mem::replace(&mut self.images[image], moved);
        self.images.push(old);
    }

    /// Nothing of the old place is shown any more.
    async fn end_move(&mut self, image: usize) {
        let moved = &mut self.images[image];
        (moved.parent, moved.is_moving) = (None, false);
        let states = moved.record.states.as_mut().unwrap();
        states.snapshots.iter_mut().for_each(|snapshot| snapshot.overlap_bytes = 0);
        let states = states.clone();
        let record = self.images[image].record.clone();
        remove_unneeded(&self.client, &record, &states, &|_, _| {}).await.unwrap();
        self.remove_other_place().await;
    }

    /// Removes the place that is at the end of the list.
    pub(super) async fn remove_other_place(&mut self) {
        let old = self.images.pop().expect("it was put there");
        let prefix = image_prefix(&old.record.id);
        visit_objects::<crate::ImageError>(&self.client, POOL, &prefix, false, async |objects| {
            let names = objects.into_iter().map(|object| object.name);
            remove_objects(&self.client, POOL, names, None, || {}).await
        })
        .await
        .unwrap();
    }

    /// The snapshots as readers have them that open them at this moment.
    pub(super) async fn opened(&mut self, image: usize) -> Vec<(Rc<State<C>>, Contents)> {
        let mut opened = Vec::new();
        for (number, contents) in self.images[image].snapshots.clone() {
            let state = Rc::new(self.state(image, number));
            if self.random.below(2) == 0 {
                state.list_all().await.unwrap();
            }
            opened.push((state, contents));
        }
        opened
    }
}
