//! The clock of an OSD: it drifts, and stands still while its virtual machine is paused.

/// The clock that an OSD goes by.
pub struct Clock {
    /// In millionths.
    rate: u64,
    /// How far ahead it is, in microseconds.
    offset: u64,
    /// Time of its last stop, and of its end.
    stopped: (u64, u64),
    /// How long it had stood still before that.
    stood_still: u64,
    /// The OSD has not noticed yet.
    is_news: bool,
}

impl Clock {
    pub fn new(rate: u64, offset: u64) -> Self {
        Clock { rate, offset, stopped: (0, 0), stood_still: 0, is_news: false }
    }

    pub fn stop(&mut self, now: u64, until: u64) {
        self.stood_still += self.stopped.1 - self.stopped.0;
        (self.stopped, self.is_news) = ((now, until), true);
    }

    /// The machine is restarted: the clock runs again, and no process that relies on it is left.
    pub fn go_on(&mut self, now: u64) {
        self.stopped.1 = self.stopped.1.min(now).max(self.stopped.0);
        self.is_news = false;
    }

    /// Returns true if it stands still, or did and the OSD has yet to notice.
    pub fn is_news(&self) -> bool {
        self.is_news
    }

    pub fn take_stopped(&mut self, now: u64) -> bool {
        now >= self.stopped.1 && std::mem::take(&mut self.is_news)
    }

    pub fn local_ms(&self, now: u64) -> u64 {
        let (from, until) = self.stopped;
        let went_on = now - self.stood_still - (now.min(until) - now.min(from));
        (self.offset + went_on * self.rate / 1_000_000) / 1_000
    }
}
