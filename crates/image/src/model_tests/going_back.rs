//! Cancelled moves, within histories: the image is written, its writer dies, and it and its snapshots are read
//! while writes from the other place are copied back.

use std::cell::Cell;
use std::rc::Rc;

use super::flattening::AtRate;
use super::moves::Sometimes;
use super::{BLOCK, Contents, History, Objects, values};
use crate::ahead::Ahead;
use crate::snapshots::remove_unneeded;
use crate::state::State;

impl<C: Objects> History<C> {
    /// Under which number states are kept.
    pub(super) fn kept_number(&self, image: usize) -> Option<u64> {
        let record = &self.images[image].record;
        record
            .kept_number()
            .or_else(|| self.images[image].left.and(record.states.as_ref()).map(|states| states.newest))
    }

    /// Cancels the move of an image. Readers have opened snapshots before.
    pub(super) async fn go_back(&mut self, image: usize, mut opened: Vec<(Rc<State<C>>, Contents)>) {
        self.begin_going_back(image, &mut opened).await;
        self.verify_image(image).await;
        for _ in 0..self.random.below(3) {
            let volume = self.volume(image).await;
            match self.random.below(2) {
                0 => self.interrupt(volume.bring_all(&AtRate(None))).await,
                _ => {
                    let some = Sometimes(Cell::new(self.random.below(5)));
                    let brought = volume.bring_all(&some);
                    futures::future::join(brought, self.change_meanwhile(image)).await.0.unwrap();
                }
            }
            drop(volume);
            // What is under way of a process that was interrupted is fenced off by the next one.
            self.images[image].volume = None;
            let dies = self.random.below(2) == 0;
            self.change(image, dies).await;
            self.verify_image(image).await;
            opened.extend(self.opened(image).await);
        }
        if self.random.below(2) == 0 {
            self.images[image].volume = None;
            let head = Rc::new(self.head(image));
            let number = self.images[image].record.states.as_ref().unwrap().newest;
            Ahead::find(Rc::clone(&head), number).await.unwrap();
            let length = self.images[image].contents.len() as u64 * BLOCK;
            // Nobody changes it while it is only read; it is brought back meanwhile.
            let volume = self.volume(image).await;
            let read = async { values(&head.read_blocks(0, length).await.unwrap()) };
            let (brought, found) = futures::future::join(volume.bring_all(&AtRate(None)), read).await;
            assert!(brought.unwrap());
            assert_eq!(found, self.images[image].contents, "who only reads it");
            assert_eq!(
                values(&head.read_blocks(0, length).await.unwrap()),
                found,
                "who only reads it, afterwards"
            );
        }
        let volume = self.volume(image).await;
        let brought = async {
            assert!(volume.bring_all(&AtRate(Some(1 << 20))).await.unwrap());
            volume.drop_ahead().await;
        };
        futures::future::join(brought, self.change_meanwhile(image)).await;
        for (state, contents) in &opened {
            let found = values(&state.read_blocks(0, contents.len() as u64 * BLOCK).await.unwrap());
            assert_eq!(found, *contents, "who opened {:?} before the image went back", state.number);
        }
        drop(opened);
        drop(volume);
        self.end_going_back(image).await;
        self.verify_image(image).await;
    }

    /// The image is again its old one, which is at the end of the list, and the new one is there then.
    async fn begin_going_back(&mut self, image: usize, opened: &mut Vec<(Rc<State<C>>, Contents)>) {
        self.take_over(image).await;
        let there = self.head(image);
        if self.random.below(2) == 0 {
            there.list_all().await.unwrap();
        }
        opened.push((Rc::new(there), self.images[image].contents.clone()));
        let mut back = self.images.pop().expect("it was put there");
        let states = back.record.states.as_mut().unwrap();
        states.snapshots.pop().expect("the one that the other place showed");
        states.newest += 1;
        back.left = Some(self.images.len());
        back.contents = self.images[image].contents.clone();
        back.volume = None;
        let left = std::mem::replace(&mut self.images[image], back);
        self.images.push(left);
    }

    /// Nothing of the other place is shown any more.
    async fn end_going_back(&mut self, image: usize) {
        self.images[image].left = None;
        let volume = self.images[image].volume.clone();
        let record = self.images[image].record.clone();
        if let Some(volume) = volume {
            volume.keeping.change(record.kept_number()).await;
        }
        let states = record.states.clone().unwrap();
        remove_unneeded(&self.client, &record, &states, &|_, _| {}).await.unwrap();
        self.remove_other_place().await;
    }
}
