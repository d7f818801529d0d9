//! Reading JSON records, of cluster state and of the data directory: their format is checked first.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::records::{
    RECORD_FORMAT, RECORD_FORMAT_OF_ACCESS, RECORD_FORMAT_OF_GOING_BACK, RECORD_FORMAT_OF_STATES,
    RECORD_FORMAT_OF_VERSIONS,
};

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its fields may mean something else than this release knows.
    #[error(
        "it has format {found}, and this release reads formats up to {RECORD_FORMAT}: use the release that wrote it, or a later one"
    )]
    LaterFormat {
        /// Its format.
        found: u64,
    },
    /// There is nothing, as is left of a record that the client of cluster state has refused.
    #[error("it is empty, or no holder of the key service has signed it")]
    Refused,
    /// It is not such a record.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

/// Reads a record, unless its `format` is of a later release.
pub fn read_record<T: DeserializeOwned>(json: &[u8]) -> Result<T, RecordError> {
    if json.is_empty() {
        return Err(RecordError::Refused);
    }
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        format: u64,
        versioning: Option<IgnoredAny>,
        access: Option<IgnoredAny>,
        account: Option<IgnoredAny>,
        states: Option<IgnoredAny>,
        work: Option<IgnoredAny>,
        export: Option<IgnoredAny>,
        hold: Option<IgnoredAny>,
        flattening: Option<IgnoredAny>,
        metadata: Option<IgnoredAny>,
    }
    // What is no object, or has no number there, is judged as what it should be.
    if let Ok(head) = serde_json::from_slice::<Head>(json) {
        // Buckets with versions, buckets with settings of access, access keys of accounts, and images with more
        // than their head have formats of their own.
        let format = head.format;
        let latest = if head.access.or(head.account).is_some() {
            RECORD_FORMAT_OF_ACCESS
        } else if head.flattening.is_some() {
            RECORD_FORMAT_OF_GOING_BACK
        } else if head.versioning.is_some() {
            RECORD_FORMAT_OF_VERSIONS
        } else if head.states.or(head.work).or(head.export).or(head.hold).or(head.metadata).is_some() {
            RECORD_FORMAT_OF_STATES
        } else {
            RECORD_FORMAT
        };
        if format > u64::from(latest) {
            return Err(RecordError::LaterFormat { found: format });
        }
    }
    Ok(serde_json::from_slice(json)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::FlagsRecord;

    #[test]
    fn records_of_later_formats_are_refused() {
        let read = |text: &str| read_record::<FlagsRecord>(text.as_bytes());
        assert_eq!(read(r#"{"format":1,"flags":{}}"#).unwrap().format, 1);
        let error = read(r#"{"format":2,"flags":{},"more":1}"#).unwrap_err();
        assert!(matches!(error, RecordError::LaterFormat { found: 2 }), "{error}");
        let error = read(r#"{"format":2,"flags":"something else"}"#).unwrap_err();
        assert!(matches!(error, RecordError::LaterFormat { found: 2 }), "{error}");
        assert!(matches!(read(r#"{"format":"?"}"#).unwrap_err(), RecordError::Malformed(_)));
        assert_eq!(read_record::<u32>(b"7").unwrap(), 7);
        assert!(matches!(read_record::<u32>(b"").unwrap_err(), RecordError::Refused));
        // A bucket with versions has a format of its own.
        let bucket = |format: u32| format!(r#"{{"format":{format},"versioning":{{"generation":1}}}}"#);
        assert!(read_record::<serde_json::Value>(bucket(2).as_bytes()).is_ok());
        let error = read_record::<serde_json::Value>(bucket(3).as_bytes()).unwrap_err();
        assert!(matches!(error, RecordError::LaterFormat { found: 3 }), "{error}");
        for (field, newest) in [(r#""access":{}"#, 3_u64), (r#""account":"1""#, 3), (r#""flattening":{}"#, 5)] {
            let record = |format: u64| format!(r#"{{"format":{format},{field}}}"#);
            assert!(read_record::<serde_json::Value>(record(newest).as_bytes()).is_ok());
            let error = read_record::<serde_json::Value>(record(newest + 1).as_bytes()).unwrap_err();
            assert!(matches!(error, RecordError::LaterFormat { found } if found == newest + 1), "{error}");
        }
    }
}
