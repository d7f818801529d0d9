//! Flattening of clones within histories, while they are read and written.

use bytes::Bytes;

use super::{BLOCK, History, Objects, values};
use crate::flatten::CopyControl;

/// Copies until everything is copied.
pub(super) struct AtRate(pub Option<u64>);

impl CopyControl for AtRate {
    fn is_wanted(&self) -> bool {
        true
    }

    fn bytes_per_second(&self) -> Option<u64> {
        self.0
    }

    fn looked_at(&self, _: u64, _: u64) {}
}

impl<C: Objects> History<C> {
    /// Sometimes a writer copies everything, and dies before it could say so: the next one shows the parent still.
    pub(super) async fn die_before_the_parent_is_hidden(&mut self, image: usize) {
        if self.random.below(4) != 0 {
            return;
        }
        let volume = self.volume(image).await;
        assert!(volume.copy_from_parent(&AtRate(None)).await.unwrap());
        volume.drop_parent().await;
        drop(volume);
        self.change(image, false).await;
        self.images[image].volume = None;
        self.verify_image(image).await;
    }

    pub(super) async fn flatten(&mut self, image: usize) {
        if self.images[image].parent.is_none() {
            return;
        }
        let volume = self.volume(image).await;
        self.interrupt(volume.copy_from_parent(&AtRate(None))).await;
        drop(volume);
        // What is under way of a process that was interrupted is fenced off by the next one.
        self.images[image].volume = None;
        self.die_before_the_parent_is_hidden(image).await;
        let volume = self.volume(image).await;
        // It is read and written meanwhile.
        let copied = async {
            assert!(volume.copy_from_parent(&AtRate(Some(1 << 20))).await.unwrap());
            volume.drop_parent().await;
        };
        let before = self.images[image].contents.clone();
        let written = self.random.below(before.len() as u64);
        let data = Bytes::from(vec![252; BLOCK as usize]);
        let used = async {
            let found = values(&volume.read(0, before.len() as u32 * BLOCK as u32).await.unwrap());
            assert_eq!(found, before, "while it is flattened");
            match self.random.0 % 2 {
                0 => volume.trim(written * BLOCK, BLOCK).await.unwrap(),
                _ => volume.write(written * BLOCK, &data).await.unwrap(),
            }
        };
        futures::future::join(copied, used).await;
        let value = if self.random.0.is_multiple_of(2) { 0 } else { 252 };
        self.images[image].contents[written as usize] = value;
        assert!(volume.parent().is_none());
        let record = &mut self.images[image].record;
        // Its snapshots show the parent as before.
        let is_shown = record.snapshots().iter().any(|snapshot| snapshot.overlap_bytes > 0);
        self.images[image].parent = self.images[image].parent.filter(|_| is_shown).map(|(of, at, _)| (of, at, 0));
    }
}
