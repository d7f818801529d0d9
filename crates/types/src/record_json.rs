//! Reading JSON records, of cluster state and of the data directory: first of what format they are.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::records::RECORD_FORMAT_OF_VERSIONS;

/// The latest format version that this release reads.
const FORMAT_MAX: u32 = RECORD_FORMAT_OF_VERSIONS;

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Its fields may mean something else than this release knows.
    #[error(
        "it has format {found}, and this release reads formats up to {FORMAT_MAX}: use the release that wrote it, or a later one"
    )]
    LaterFormat {
        /// Its format.
        found: u64,
    },
    /// It is not such a record.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

/// Reads a record, unless its `format` is of a later release.
pub fn read_record<T: DeserializeOwned>(json: &[u8]) -> Result<T, RecordError> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        format: u64,
    }
    // What is no object, or has no number there, is judged as what it should be.
    let found = serde_json::from_slice::<Head>(json).map_or(0, |head| head.format);
    if found > u64::from(FORMAT_MAX) {
        return Err(RecordError::LaterFormat { found });
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
        let error = read(r#"{"format":3,"flags":{},"more":1}"#).unwrap_err();
        assert!(matches!(error, RecordError::LaterFormat { found: 3 }), "{error}");
        let error = read(r#"{"format":3,"flags":"something else"}"#).unwrap_err();
        assert!(matches!(error, RecordError::LaterFormat { found: 3 }), "{error}");
        assert!(matches!(read(r#"{"format":"?"}"#).unwrap_err(), RecordError::Malformed(_)));
        assert_eq!(read_record::<u32>(b"7").unwrap(), 7);
    }
}
