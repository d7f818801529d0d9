//! The health of disks as metrics. A series is there while its figure is known.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;

use atoll_metrics::{Family, Gauge, Labels, register};

use super::Health;

type Figures = Family<1, Gauge<f64, AtomicU64>>;

struct Registered {
    smart_passed: Figures,
    temperature_celsius: Figures,
    wear_ratio: Figures,
    spare_ratio: Figures,
    media_errors: Figures,
    power_on_seconds: Figures,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| Registered {
    smart_passed: register(
        "atoll_osd_device_smart_passed",
        "Whether the disk does not expect to fail soon",
        Family::default(),
    ),
    temperature_celsius: register(
        "atoll_osd_device_temperature_celsius",
        "Temperature of the disk",
        Family::default(),
    ),
    wear_ratio: register("atoll_osd_device_wear_ratio", "Part of the disk's life that is used", Family::default()),
    spare_ratio: register(
        "atoll_osd_device_spare_ratio",
        "Spare blocks that the disk has left",
        Family::default(),
    ),
    media_errors: register(
        "atoll_osd_device_media_errors",
        "How often the disk could not bring back data, in its life",
        Family::default(),
    ),
    power_on_seconds: register("atoll_osd_device_power_on_seconds", "How long the disk was on", Family::default()),
});

/// The series of one device of this OSD.
pub(super) struct DeviceHealth(Labels<1>);

impl DeviceHealth {
    pub fn new(device: &str) -> Self {
        DeviceHealth([("device", device.to_owned())])
    }

    /// Sets the disk's present report.
    pub fn set(&self, health: &Health) {
        for (figures, value) in all(health) {
            match value {
                Some(value) => drop(figures.get_or_create(&self.0).set(value)),
                None => drop(figures.remove(&self.0)),
            }
        }
    }

    /// Nothing is known of the disk any more.
    pub fn forget(&self) {
        self.set(&Health::default());
    }
}

fn all(health: &Health) -> [(&'static Figures, Option<f64>); 6] {
    [
        (&REGISTERED.smart_passed, health.is_passed.map(|is_passed| f64::from(u8::from(is_passed)))),
        (&REGISTERED.temperature_celsius, health.temperature_celsius),
        (&REGISTERED.wear_ratio, health.wear_ratio),
        (&REGISTERED.spare_ratio, health.spare_ratio),
        (&REGISTERED.media_errors, health.media_errors),
        (&REGISTERED.power_on_seconds, health.power_on_seconds),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_there_while_figures_are_known() {
        let metrics = DeviceHealth::new("data");
        let text = || atoll_metrics::encode(atoll_metrics::TextFormat::Prometheus).unwrap();
        let wear = "atoll_osd_device_wear_ratio{device=\"data\"} 0.03\n";
        metrics.set(&Health { is_passed: Some(false), wear_ratio: Some(0.03), ..Health::default() });
        assert!(text().contains("atoll_osd_device_smart_passed{device=\"data\"} 0"), "{}", text());
        assert!(text().contains(wear), "{}", text());
        assert!(!text().contains("atoll_osd_device_temperature_celsius{"), "{}", text());
        metrics.forget();
        assert!(!text().contains("device=\"data\""), "{}", text());
    }
}
