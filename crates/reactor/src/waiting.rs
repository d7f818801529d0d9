//! Waiting for completions: asleep in the kernel, after looking for them for a while if that is set.

use std::io;
use std::time::{Duration, Instant};

use io_uring::types;

use crate::reactor::Reactor;

impl Reactor {
    /// Looks for completions so long before it sleeps. A loop to which nothing happens sleeps all the same.
    pub fn set_busy_poll(&mut self, duration: Duration) {
        self.busy_poll = duration;
    }

    /// Submits, and looks for completions for a while if that is set. True if there are some.
    fn poll_busily(&mut self) -> io::Result<bool> {
        let begun = Instant::now();
        while begun.elapsed() < self.busy_poll {
            self.submit_and_sleep(Some(Duration::ZERO))?;
            if !self.ring.completion().is_empty() || self.has_carried() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Submits, and waits until something completes or comes by a carrier.
    pub(crate) fn submit_and_wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        if self.has_carried() {
            return self.submit_and_sleep(Some(Duration::ZERO));
        }
        let may_sleep = wait.is_none_or(|wait| wait > self.busy_poll);
        if may_sleep && !self.busy_poll.is_zero() && self.poll_busily()? {
            return Ok(());
        }
        if self.carried.is_empty() || wait == Some(Duration::ZERO) {
            return self.submit_and_sleep(wait);
        }
        // Whatever comes from here on wakes the loop, and what has come before is seen now.
        self.tell_carriers(true);
        let wait = if self.has_carried() { Some(Duration::ZERO) } else { wait };
        let result = self.submit_and_sleep(wait);
        self.tell_carriers(false);
        result
    }

    fn submit_and_sleep(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let result = match wait {
            None => self.ring.submitter().submit_and_wait(1),
            Some(wait) => {
                let timeout = types::Timespec::from(wait);
                let arguments = types::SubmitArgs::new().timespec(&timeout);
                // Waiting for one completion even with no time to wait makes the kernel post those
                // that are ready, which deferred task runs need.
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The wait was over or interrupted, or completions must be taken first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }
}
