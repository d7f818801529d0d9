//! Progress of the supervisor, for display.

use crate::data_dir::ClusterFile;
use crate::processes::ProcessesFile;

/// Progress of the supervisor, for display.
pub enum Progress<'a> {
    /// A step of the start.
    Step(&'a str),
    /// Everything serves, although some OSDs of this host may be down: their names.
    Healthy(&'a ClusterFile, &'a [String]),
    /// A process died and is being restarted.
    Died {
        /// Its name.
        name: &'a str,
        /// How it ended.
        how: String,
    },
    /// A second has passed.
    Tick(&'a ProcessesFile),
}
