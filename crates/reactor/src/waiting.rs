//! Waiting for completions: asleep in the kernel, after looking for them for a while if that is set.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types;

use crate::reactor::Reactor;
use crate::transport::shared_memory::Doorbell;

/// `IORING_ENTER_GETEVENTS`: posts what is complete, which deferred task runs need.
const ENTER_GETEVENTS: u32 = 1;

impl Reactor {
    /// Looks for completions so long before it sleeps. A loop to which nothing happens sleeps all the same.
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

    /// An eventfd that is counted up when something comes for a loop whose thread waits elsewhere, after
    /// [`Reactor::fall_asleep`]. To be called before anything is connected.
    ///
    /// The ring counts it up itself: to wait for the ring's descriptor is not enough, because with DEFER_TASKRUN
    /// that becomes readable only once the thread has let the kernel work. It is the loop's doorbell as well: an
    /// eventfd that the ring watches would have it count up this one only after an RCU grace period.
    pub(crate) fn tell_by_eventfd(&mut self) -> io::Result<OwnedFd> {
        assert!(self.doorbell.is_none(), "nobody has been given another doorbell");
        let (doorbell, twin) = Doorbell::create()?;
        self.ring.submitter().register_eventfd(twin.as_raw_fd())?;
        self.doorbell = Some(doorbell);
        Ok(twin)
    }

    /// From here on whatever comes tells the eventfd, until [`Reactor::awake`]. Gives how long the
    /// thread may wait at most; `Some(Duration::ZERO)` if there is something to do already.
    pub(crate) fn fall_asleep(&mut self) -> Option<Duration> {
        self.tell_carriers(true);
        let has_work = self.has_carried() || !self.ring.completion().is_empty();
        if has_work { Some(Duration::ZERO) } else { self.until_next() }
    }

    /// The loop looks by itself again.
    pub(crate) fn awake(&mut self) {
        self.tell_carriers(false);
    }

    /// Submits what is queued and has the kernel post what is complete, if there is either.
    fn submit_and_look(&mut self) -> io::Result<()> {
        let queue = self.ring.submission();
        let (count, has_work) = (queue.len() as u32, queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if count == 0 && !has_work {
            return Ok(());
        }
        // SAFETY: the entries are sound (see `push_backlog`), and no argument is passed.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) };
        may_go_on(result)
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
        may_go_on(result)
    }
}

fn may_go_on(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            // The wait was over or interrupted, or completions must be taken first.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}
