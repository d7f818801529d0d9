//! The fields of a form by their names, which mean the same in any case.

use s3s::{S3Error, S3Result, s3_error};

/// Fields whose names begin so are the client's own, and no policy speaks of them.
const IGNORED_PREFIX: &str = "x-ignore-";

/// The fields, with names in lower case.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Adds a field as it arrived.
    pub(super) fn add(&mut self, name: &str, value: String) -> S3Result<()> {
        let name = name.to_ascii_lowercase();
        if name.starts_with(IGNORED_PREFIX) {
            return Ok(());
        }
        if self.get(&name).is_some() {
            return Err(s3_error!(InvalidArgument, "POST requires at most one field named '{name}'"));
        }
        self.0.push((name, value));
        Ok(())
    }

    /// Replaces a field, or adds it.
    pub(super) fn set(&mut self, name: &str, value: String) {
        self.0.retain(|(other, _)| other != name);
        self.0.push((name.to_owned(), value));
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// A field that must be there.
    pub(super) fn required(&self, name: &str) -> S3Result<&str> {
        self.get(name).ok_or_else(|| missing(name))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn missing(name: &str) -> S3Error {
    s3_error!(
        InvalidArgument,
        "Bucket POST must contain a field named '{name}'. If it is specified, please check the order of the fields"
    )
}

#[cfg(test)]
impl<const COUNT: usize> From<[(&str, &str); COUNT]> for Fields {
    fn from(fields: [(&str, &str); COUNT]) -> Self {
        let mut all = Fields::default();
        for (name, value) in fields {
            all.set(name, value.to_owned());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_the_same_in_any_case() {
        let mut fields = Fields::default();
        for (name, value, is_good) in [
            ("kEy", "a", true),
            ("key", "b", false),
            ("x-ignore-this", "c", true),
            ("X-Ignore-this", "d", true),
            ("Content-Type", "text/plain", true),
        ] {
            assert_eq!(fields.add(name, value.into()).is_ok(), is_good, "{name}");
        }
        assert_eq!(fields.required("key").unwrap(), "a");
        assert_eq!(fields.get("content-type"), Some("text/plain"));
        assert_eq!(fields.iter().count(), 2);
        assert!(fields.required("policy").is_err());
        fields.set("key", "e".into());
        assert_eq!(fields.get("key"), Some("e"));
    }
}
