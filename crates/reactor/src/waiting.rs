//! Waiting for completions: asleep in the kernel, after looking for them for a while if that is set.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types;
use rustix::event::{EventfdFlags, eventfd};

use crate::reactor::Reactor;
use crate::transport::shared_memory::Doorbell;

/// `IORING_ENTER_GETEVENTS`: posts what is complete, which deferred task runs need.
const ENTER_GETEVENTS: u32 = 1;

impl Reactor {
    /// Sets how long the loop polls for completions before it sleeps. A loop without events sleeps all the same.
    pub fn set_busy_poll(&mut self, duration: Duration) {
        self.busy_poll = duration;
    }

    /// Submits, and looks for completions for a while if that is set. True if there are some.
    fn poll_busily(&mut self) -> io::Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < self.busy_poll {
            self.submit_and_look()?;
            if !self.ring.completion().is_empty() || self.has_carried() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Submits, and waits until something completes or comes by a carrier.
    pub(crate) fn submit_and_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if wait == Some(Duration::ZERO) || self.has_carried() {
            return self.submit_and_look();
        }
        let may_sleep = wait.is_none_or(|wait| wait > self.busy_poll);
        if may_sleep && !self.busy_poll.is_zero() && self.poll_busily()? {
            return Ok(());
        }
        if self.carried.is_empty() {
            return self.submit_and_sleep(wait);
        }
        // Whatever comes from here on wakes the loop, and what has come before is seen now.
        self.tell_carriers(true);
        let result = if self.has_carried() { self.submit_and_look() } else { self.submit_and_sleep(wait) };
        self.tell_carriers(false);
        result
    }

    /// Returns descriptors that become readable when an event comes for a loop whose thread waits elsewhere, after
    /// [`Reactor::fall_asleep`]: eventfds of the ring, of peers that share memory, and of other threads. To be
    /// called before anything is connected.
    ///
    /// To wait for the ring's descriptor is not enough: with DEFER_TASKRUN that becomes readable only once the thread
    /// has let the kernel work. Nor is the ring's eventfd: while others count up one that the ring watches, the kernel
    /// counts up this one only after an RCU grace period.
    pub(crate) fn tellers(&mut self) -> io::Result<[OwnedFd; 3]> {
        assert!(self.doorbell.is_none(), "no peer has another doorbell");
        let completions = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.ring.submitter().register_eventfd(completions.as_raw_fd())?;
        let (doorbell, peers) = Doorbell::create()?;
        self.doorbell = Some(doorbell);
        Ok([completions, peers, self.wake.second_descriptor()?])
    }

    /// From here on one of the tellers reports every event, until [`Reactor::awake`]. Gives how long the thread
    /// may wait at most; `Some(Duration::ZERO)` if there is something to do already.
    pub(crate) fn fall_asleep(&mut self) -> io::Result<Option<Duration>> {
        // As before any other sleep, everything must be under way.
        self.start_transfers();
        let until_next = self.until_next();
        self.push_backlog()?;
        self.submit_and_look()?;
        self.tell_carriers(true);
        let queue = self.ring.submission();
        let must_enter = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        let has_come = must_enter || !self.events.is_empty() || !self.ring.completion().is_empty();
        Ok(if has_come || self.has_carried() { Some(Duration::ZERO) } else { until_next })
    }

    /// The loop looks by itself again.
    pub(crate) fn awake(&mut self) {
        self.tell_carriers(false);
    }

    /// Submits the queue and has the kernel post complete operations, if there is either.
    fn submit_and_look(&mut self) -> io::Result<()> {
        let queue = self.ring.submission();
        let (count, has_work) = (queue.len() as u32, queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if count == 0 && !has_work {
            return Ok(());
        }
        // SAFETY: the entries are sound (see `push_backlog`), and no argument is passed.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) };
        unless_interrupted(result)
    }

    fn submit_and_sleep(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let result = match wait {
            None => self.ring.submitter().submit_and_wait(1),
            Some(wait) => {
                let timeout = types::Timespec::from(wait);
                let arguments = types::SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        unless_interrupted(result)
    }
}

fn unless_interrupted(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            // The wait was over or interrupted, or completions must be taken first.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}
