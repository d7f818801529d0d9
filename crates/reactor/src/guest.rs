//! The loop as the guest of a thread that runs tokio: it takes its turns in a task of tokio's.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::runtime::LocalRuntime;

/// Handle of a task of tokio that takes the turns of a loop. It may be sent to other threads, while the loop must
/// stay on its own.
pub struct GuestTurns {
    /// Eventfds that are counted up when something has come for the loop. None is read: each count wakes tokio.
    tellers: [AsyncFd<OwnedFd>; 3],
    timer: Pin<Box<Sleep>>,
}

impl GuestTurns {
    /// For this loop, in the runtime of tokio that this is called in, before the loop has taken a turn.
    pub fn new(guest: &LocalRuntime) -> io::Result<Self> {
        let [completions, peers, threads] = guest.tellers()?.map(watch);
        Ok(GuestTurns { tellers: [completions?, peers?, threads?], timer: Box::pin(sleep_until(Instant::now())) })
    }

    /// Takes a turn of the same loop. The task is woken when there is more to do; giving the loop's tasks work in
    /// between wakes it, too.
    pub fn poll(&mut self, guest: &LocalRuntime, context: &mut Context<'_>) -> io::Result<()> {
        // What comes from here on is seen by this turn or told of anew.
        for teller in &self.tellers {
            while let Poll::Ready(ready) = teller.poll_read_ready(context) {
                ready?.clear_ready();
            }
        }
        if guest.look()? {
            // The tasks that wait for what has happened go first; what they ask for leaves together.
            context.waker().wake_by_ref();
            return Ok(());
        }
        let Some(limit) = guest.fall_asleep()? else { return Ok(()) };
        self.timer.as_mut().reset(Instant::now() + limit);
        if limit.is_zero() || self.timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        Ok(())
    }
}

fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and the same, as long as it is owned.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    watched.map_err(io::Error::from)
}
