//! The JSON of `smartctl --json` and of `nvme smart-log -o json`. Both report as much as they can: a missing value
//! or one that is no number is unknown.

use serde_json::Value;

/// A disk's report of its health.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Health {
    /// The disk does not expect to fail soon.
    pub is_passed: Option<bool>,
    pub temperature_celsius: Option<f64>,
    /// 1 is the life that the maker expects; it may become more.
    pub wear_ratio: Option<f64>,
    /// Spare blocks that are left, of those that there were.
    pub spare_ratio: Option<f64>,
    /// Data that the disk could not bring back, as often as that has happened.
    pub media_errors: Option<f64>,
    pub power_on_seconds: Option<f64>,
}

const ZERO_CELSIUS_KELVIN: f64 = 273.0;

/// Counters may be larger than the numbers of JSON; some versions of `nvme` write them as texts.
fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    (number.is_finite() && number >= 0.0).then_some(number)
}

fn known(health: Health) -> Option<Health> {
    (health != Health::default()).then_some(health)
}

/// Reads the report of `smartctl --json`. None if it has nothing about the disk's health.
pub(super) fn of_smartctl(text: &str) -> Option<Health> {
    let document: Value = serde_json::from_str(text).ok()?;
    let at = |pointer: &str| document.pointer(pointer).and_then(number);
    let of_nvme = |name: &str| at(&format!("/nvme_smart_health_information_log/{name}"));
    known(Health {
        is_passed: document.pointer("/smart_status/passed").and_then(Value::as_bool),
        temperature_celsius: at("/temperature/current"),
        // From version 7.4 on it has the same for all kinds of disks.
        wear_ratio: of_nvme("percentage_used").or_else(|| at("/endurance_used/current_percent")).map(ratio),
        spare_ratio: of_nvme("available_spare").or_else(|| at("/spare_available/current_percent")).map(ratio),
        media_errors: of_nvme("media_errors"),
        power_on_seconds: at("/power_on_time/hours").map(seconds),
    })
}

/// Reads the report of `nvme smart-log -o json`. None if it has nothing about the disk's health.
pub(super) fn of_nvme(text: &str) -> Option<Health> {
    let document: Value = serde_json::from_str(text).ok()?;
    let at = |name: &str| document.get(name).and_then(number);
    known(Health {
        is_passed: at("critical_warning").map(|warning| warning == 0.0),
        temperature_celsius: at("temperature").map(|kelvin| kelvin - ZERO_CELSIUS_KELVIN),
        wear_ratio: at("percent_used").or_else(|| at("percentage_used")).map(ratio),
        spare_ratio: at("avail_spare").map(ratio),
        media_errors: at("media_errors"),
        power_on_seconds: at("power_on_hours").map(seconds),
    })
}

fn ratio(percent: f64) -> f64 {
    percent / 100.0
}

fn seconds(hours: f64) -> f64 {
    hours * 3_600.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Report of smartctl 7.3 on an NVMe disk.
    const NVME_BY_SMARTCTL: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,3],"exit_status":0},
        "device":{"name":"/dev/nvme0n1","info_name":"/dev/nvme0n1","type":"nvme","protocol":"NVMe"},
        "smart_status":{"passed":true,"nvme":{"value":0}},
        "nvme_smart_health_information_log":{"critical_warning":0,"temperature":36,"available_spare":100,
            "available_spare_threshold":10,"percentage_used":3,"data_units_read":176223450,"host_reads":2109933141,
            "controller_busy_time":1071,"power_cycles":62,"power_on_hours":14210,"unsafe_shutdowns":41,
            "media_errors":2,"num_err_log_entries":0},
        "temperature":{"current":36},"power_cycle_count":62,"power_on_time":{"hours":14210}}"#;

    /// The same on a SATA disk, which does not report wear, and which has failed: the exit status shows it, too.
    const SATA_BY_SMARTCTL: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,3],"exit_status":24},
        "device":{"name":"/dev/sda","info_name":"/dev/sda [SAT]","type":"sat","protocol":"ATA"},
        "smart_status":{"passed":false},
        "ata_smart_attributes":{"revision":16,"table":[{"id":5,"name":"Reallocated_Sector_Ct","value":1,"worst":1,
            "thresh":5,"when_failed":"now","raw":{"value":2011,"string":"2011"}}]},
        "power_on_time":{"hours":51002},"power_cycle_count":19,"temperature":{"current":41}}"#;

    /// Report of smartctl 7.3 on a virtio disk.
    const NO_DISK_BY_SMARTCTL: &str = r#"{"json_format_version":[1,0],"smartctl":{"version":[7,3],
        "svn_revision":"5338","argv":["smartctl","--json","-x","/dev/vda"],
        "messages":[{"string":"/dev/vda: Unable to detect device type","severity":"error"}],"exit_status":1},
        "local_time":{"time_t":1795688201,"asctime":"Thu Nov 26 10:16:41 2026 UTC"}}"#;

    /// Report of nvme 2 on a disk with a warning. Large counters are texts.
    const NVME_BY_NVME: &str = r#"{"critical_warning":4,"temperature":318,"avail_spare":7,"spare_thresh":10,
        "percent_used":112,"endurance_grp_critical_warning_summary":0,"data_units_read":"176223450",
        "controller_busy_time":"1071","power_cycles":"62","power_on_hours":"14210","unsafe_shutdowns":"41",
        "media_errors":"9","num_err_log_entries":"12","warning_temp_time":0,"temperature_sensor_1":318}"#;

    #[test]
    fn smartctl_tells_of_nvme() {
        let expected = Health {
            is_passed: Some(true),
            temperature_celsius: Some(36.0),
            wear_ratio: Some(0.03),
            spare_ratio: Some(1.0),
            media_errors: Some(2.0),
            power_on_seconds: Some(51_156_000.0),
        };
        assert_eq!(of_smartctl(NVME_BY_SMARTCTL), Some(expected));
    }

    #[test]
    fn smartctl_tells_of_others_what_they_have() {
        let expected = Health {
            is_passed: Some(false),
            temperature_celsius: Some(41.0),
            power_on_seconds: Some(183_607_200.0),
            ..Health::default()
        };
        assert_eq!(of_smartctl(SATA_BY_SMARTCTL), Some(expected));
        let with_wear = r#"{"endurance_used":{"current_percent":12},"spare_available":{"current_percent":98}}"#;
        let expected = Health { wear_ratio: Some(0.12), spare_ratio: Some(0.98), ..Health::default() };
        assert_eq!(of_smartctl(with_wear), Some(expected));
    }

    #[test]
    fn nvme_tells_kelvin_and_texts() {
        let expected = Health {
            is_passed: Some(false),
            temperature_celsius: Some(45.0),
            wear_ratio: Some(1.12),
            spare_ratio: Some(0.07),
            media_errors: Some(9.0),
            power_on_seconds: Some(51_156_000.0),
        };
        assert_eq!(of_nvme(NVME_BY_NVME), Some(expected));
    }

    #[test]
    fn what_is_no_answer_tells_nothing() {
        for text in ["", "Permission denied", "[]", "3", "{}", NO_DISK_BY_SMARTCTL] {
            assert_eq!(of_smartctl(text), None, "{text}");
            assert_eq!(of_nvme(text), None, "{text}");
        }
        let odd = r#"{"temperature":"warm","media_errors":-1,"power_on_hours":"nan","avail_spare":[1]}"#;
        assert_eq!(of_nvme(odd), None);
    }
}
