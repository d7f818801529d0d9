//! Prediction of a described cluster's rates, by arithmetic: the measured cost of one operation (CPU time and
//! bytes) against the cluster's resources (cores, network, drives). The resource that allows the fewest operations
//! is the bottleneck.
//!
//! It is a ceiling: it knows no waiting, no uneven load and no work beside clients' operations.

mod calibration;
mod cluster;
mod demand;
mod predict;
#[cfg(test)]
mod tests;

pub use calibration::Calibration;
pub use cluster::{ClusterDescription, Drives, Gateways, Operation, Redundancy, Workload};
pub use predict::{Forecast, Prediction, Resource, forecast};

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file of TOML that lacks or misuses a value.
    #[error("{what} cannot be understood: {detail}")]
    Format {
        /// The file, or the built-in name.
        what: String,
        /// Where and why.
        detail: String,
    },
    /// A description that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// A cluster description or a calibration that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Name on the command line.
    pub name: &'static str,
    /// The TOML.
    pub text: &'static str,
}

/// Clusters that are described already.
pub const CLUSTERS: &[BuiltIn] = &[
    BuiltIn { name: "rgw-12-hosts", text: include_str!("../../models/rgw-12-hosts.toml") },
    BuiltIn { name: "four-hosts", text: include_str!("../../models/four-hosts.toml") },
    BuiltIn { name: "capped-hosts", text: include_str!("../../models/capped-hosts.toml") },
];

/// Calibrations: the first is the default.
pub const CALIBRATIONS: &[BuiltIn] = &[
    BuiltIn { name: "atoll", text: include_str!("../../models/calibration-atoll.toml") },
    BuiltIn { name: "ceph", text: include_str!("../../models/calibration-ceph.toml") },
];

impl BuiltIn {
    /// The one of this name.
    pub fn find(all: &[BuiltIn], name: &str) -> Option<&'static str> {
        all.iter().find(|built_in| built_in.name == name).map(|built_in| built_in.text)
    }
}

pub(crate) fn parse_toml<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, ModelError> {
    toml::from_str(text)
        .map_err(|error| ModelError::Format { what: what.to_owned(), detail: error.to_string().trim().to_owned() })
}
