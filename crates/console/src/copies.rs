//! Images that this process copies while they have no writer: clones that are flattened, and images that move to
//! other pools. Calls begin that and do not wait for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::commands::{Command, RunCommands};

/// Images that are copied at once. Each has a client of the OSDs and a thread.
pub(crate) const COPIES_MAX: usize = 4;

/// The copying of an image to its end.
pub(crate) struct CopyJob {
    pub runner: Arc<dyn RunCommands>,
    pub command: Command,
    /// The operator who wants it.
    pub user: String,
}

#[derive(Default)]
struct OfImage {
    /// Calls that have not said yet whether they begin a copy.
    calls: usize,
    is_running: bool,
    /// To be done when the running one has ended. A later one replaces earlier ones.
    next: Option<CopyJob>,
}

/// The images, by their names.
#[derive(Default)]
pub(crate) struct Copies(Mutex<BTreeMap<String, OfImage>>);

impl Copies {
    /// Returns the right to copy an image; `None` if it has to wait for the copying of others.
    pub fn turn(self: &Arc<Self>, image: &str) -> Option<Turn> {
        let mut all = self.all();
        if !all.contains_key(image) && all.len() >= COPIES_MAX {
            return None;
        }
        all.entry(image.to_owned()).or_default().calls += 1;
        Some(Turn { copies: Arc::clone(self), image: image.to_owned() })
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, OfImage>> {
        // The map is whole between any two changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, image: &str) {
        while let Some(copy) = self.next(image) {
            let Err(failure) = copy.runner.run(&copy.command, &copy.user) else { continue };
            tracing::warn!(
                "this server copies image '{image}' no more, unless that is asked for again: {}",
                failure.message
            );
        }
    }

    /// Returns the next copying; without one the image is not copied any more.
    fn next(&self, image: &str) -> Option<CopyJob> {
        let mut all = self.all();
        let copy = all.get_mut(image).and_then(|of_image| {
            of_image.is_running = of_image.next.is_some();
            of_image.next.take()
        });
        forget_idle(&mut all, image);
        copy
    }
}

fn forget_idle(all: &mut BTreeMap<String, OfImage>, image: &str) {
    if all.get(image).is_some_and(|of_image| of_image.calls == 0 && !of_image.is_running) {
        all.remove(image);
    }
}

/// The right to copy an image, which ends unused if its call fails.
pub(crate) struct Turn {
    copies: Arc<Copies>,
    image: String,
}

impl Turn {
    /// Copies it, or has who copies it do this afterwards.
    pub fn begin(self, copy: CopyJob) {
        let mut all = self.copies.all();
        let of_image = all.entry(self.image.clone()).or_default();
        of_image.next = Some(copy);
        if !std::mem::replace(&mut of_image.is_running, true) {
            let (copies, image) = (Arc::clone(&self.copies), self.image.clone());
            tokio::task::spawn_blocking(move || copies.run(&image));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.copies.all();
        if let Some(of_image) = all.get_mut(&self.image) {
            of_image.calls -= 1;
        }
        forget_idle(&mut all, &self.image);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::commands::CommandFailure;

    /// Reports that a command has begun, and ends it on request.
    struct Held {
        begun: mpsc::Sender<String>,
        may_end: Mutex<mpsc::Receiver<()>>,
    }

    impl RunCommands for Held {
        fn run(&self, command: &Command, _: &str) -> Result<Value, CommandFailure> {
            self.begun.send(command.words.join(" ")).unwrap();
            self.may_end.lock().unwrap().recv().unwrap();
            Ok(Value::Null)
        }
    }

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test(flavor = "multi_thread")]
    async fn an_image_is_copied_once_at_a_time_and_only_so_many_are() {
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel();
        let runner: Arc<dyn RunCommands> = Arc::new(Held { begun, may_end: Mutex::new(may_end) });
        let copy = |words: &str| CopyJob {
            runner: Arc::clone(&runner),
            command: Command { words: vec![words.to_owned()], operands: Vec::new(), document: None },
            user: "ann".into(),
        };
        let copies = Arc::new(Copies::default());
        copies.turn("a").unwrap().begin(copy("first"));
        assert_eq!(has_begun.recv_timeout(SOON).unwrap(), "first");
        copies.turn("a").unwrap().begin(copy("second"));
        copies.turn("a").unwrap().begin(copy("third"));
        let others: Vec<Turn> =
            (1..COPIES_MAX).map(|number| copies.turn(&format!("o{number}")).unwrap()).collect();
        assert!(copies.turn("one more").is_none() && copies.turn("a").is_some());
        assert!(has_begun.try_recv().is_err(), "two at once");
        end.send(()).unwrap();
        assert_eq!(has_begun.recv_timeout(SOON).unwrap(), "third", "the last one does what the second would have");
        drop(others);
        assert!(copies.turn("one more").is_some(), "calls that failed take no room");
        end.send(()).unwrap();
        let deadline = std::time::Instant::now() + SOON;
        while !copies.all().is_empty() {
            assert!(std::time::Instant::now() < deadline, "it is still copied");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
