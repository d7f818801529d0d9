//! Rules for scripts of other origins, as the record of a bucket has them.

use serde::{Deserialize, Serialize};

/// A rule of cross-origin resource sharing, by S3's names: operations of scripts of other origins that browsers
/// allow on a bucket. Origins and allowed headers may have one `*` each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorsRule {
    /// The owner's name for the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Where a script may come from, such as `https://*.example.com`.
    pub allowed_origins: Vec<String>,
    /// Allowed methods: `GET`, `PUT`, `POST`, `DELETE`, `HEAD`.
    pub allowed_methods: Vec<String>,
    /// Headers that its requests may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_headers: Vec<String>,
    /// Headers of answers that it may read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose_headers: Vec<String>,
    /// For how many seconds a browser may keep the answer to a preflight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<u32>,
}

#[cfg(test)]
mod tests {
    use crate::record_json::read_record;
    use crate::records::BucketRecord;

    const BEFORE: &str = r#"{"format":1,"id":"1","name":"b","owner":"u","pool":2,"index_shards":1,"wrapped_key":"","created_unix_ms":1}"#;

    #[test]
    fn buckets_without_rules_are_as_before() {
        let bucket: BucketRecord = read_record(BEFORE.as_bytes()).unwrap();
        assert!(bucket.cors.is_empty());
        assert_eq!(serde_json::to_string(&bucket).unwrap(), BEFORE);
        let rule = r#"{"allowed_origins":["*"],"allowed_methods":["GET"]}"#;
        let with_rule = BEFORE.replace("}", &format!(r#","cors":[{rule}]}}"#));
        let bucket: BucketRecord = read_record(with_rule.as_bytes()).unwrap();
        assert_eq!(bucket.cors[0].max_age_seconds, None);
        assert_eq!(serde_json::to_string(&bucket).unwrap(), with_rule);
    }
}
