//! Detects devices that do not answer, such as a remote one whose paths are all lost: the kernel keeps their
//! requests until a path is back, for ever if it is configured so. Everything that waits for them would hold up
//! clients, because this OSD is alive for all others.

use atoll_store::Device;

/// Factor by which a request that does not end, although others of its device do, may take longer.
const ONE_REQUEST_FACTOR: u64 = 4;

/// State of the devices. Its clock counts the seconds in which the event loop ran: a request that a stopped
/// process has not looked at was not late.
#[derive(Default)]
pub(super) struct DeviceWatch {
    now_seconds: u64,
    /// When the data device and the log device last completed something.
    answered_seconds: [u64; 2],
}

impl DeviceWatch {
    /// When something begins or ends now, by the clock of this watch.
    pub fn now_seconds(&self) -> u64 {
        self.now_seconds
    }

    /// A second has passed.
    pub fn second(&mut self) {
        self.now_seconds += 1;
    }

    /// A device has completed something.
    pub fn answered(&mut self, device: Device) {
        self.answered_seconds[device as usize] = self.now_seconds;
    }

    /// For how long a device has completed nothing, when its oldest request began at `oldest_seconds`.
    pub fn silence_seconds(&self, device: Device, oldest_seconds: u64) -> u64 {
        self.now_seconds.saturating_sub(oldest_seconds.max(self.answered_seconds[device as usize]))
    }

    /// Why a device must not be waited for any longer, if that is so.
    pub fn verdict(&self, device: Device, oldest_seconds: u64, limit_seconds: u64) -> Option<String> {
        let silence_seconds = self.silence_seconds(device, oldest_seconds);
        if silence_seconds > limit_seconds {
            return Some(format!("the {device} device has not answered for {silence_seconds} s"));
        }
        let age_seconds = self.now_seconds.saturating_sub(oldest_seconds);
        (age_seconds > limit_seconds.saturating_mul(ONE_REQUEST_FACTOR))
            .then(|| format!("the {device} device has not completed a request for {age_seconds} s, though others"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_SECONDS: u64 = 5;

    fn watch_at(seconds: u64) -> DeviceWatch {
        let mut watch = DeviceWatch::default();
        (0..seconds).for_each(|_| watch.second());
        watch
    }

    fn verdict(watch: &DeviceWatch, oldest_seconds: u64) -> Option<String> {
        watch.verdict(Device::Data, oldest_seconds, LIMIT_SECONDS)
    }

    #[test]
    fn a_device_without_requests_before_is_not_silent() {
        let watch = watch_at(100);
        assert_eq!(verdict(&watch, 100), None);
        assert_eq!(verdict(&watch, 95), None);
        assert!(verdict(&watch, 94).is_some_and(|why| why.contains("data device has not answered for 6 s")));
    }

    #[test]
    fn one_that_is_slow_is_not_silent() {
        let mut watch = watch_at(20);
        watch.answered(Device::Data);
        assert_eq!(verdict(&watch, 0), None);
        watch.second();
        assert!(verdict(&watch, 0).is_some_and(|why| why.contains("a request for 21 s")));
    }

    #[test]
    fn devices_answer_for_themselves() {
        let mut watch = watch_at(10);
        watch.answered(Device::Log);
        assert!(verdict(&watch, 0).is_some());
        assert_eq!(watch.verdict(Device::Log, 0, LIMIT_SECONDS), None);
    }
}
