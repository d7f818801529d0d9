//! The answer of an operation, as a tree of AWS's names. The shells make XML or JSON of it.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// A value of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, a number or `true`.
    Text(String),
    /// A policy: AWS has it URL-encoded in XML.
    Document(String),
    /// Milliseconds since the Unix epoch.
    Time(u64),
    /// Members.
    List(Vec<Value>),
    /// Named values.
    Fields(Answer),
    /// Keys and values that are data both.
    Map(Vec<(String, String)>),
}

/// Named values, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer(pub Vec<(&'static str, Value)>);

impl Answer {
    /// Nothing: the operation was done.
    pub fn new() -> Self {
        Answer::default()
    }

    /// With a text.
    pub fn text(self, name: &'static str, text: impl ToString) -> Self {
        self.value(name, Value::Text(text.to_string()))
    }

    /// With a text, if there is one.
    pub fn optional(self, name: &'static str, text: Option<impl ToString>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    /// With a time in milliseconds.
    pub fn time(self, name: &'static str, unix_ms: u64) -> Self {
        self.value(name, Value::Time(unix_ms))
    }

    /// With named values.
    pub fn fields(self, name: &'static str, fields: Answer) -> Self {
        self.value(name, Value::Fields(fields))
    }

    /// With a list of structures.
    pub fn list(self, name: &'static str, members: impl IntoIterator<Item = Answer>) -> Self {
        self.value(name, Value::List(members.into_iter().map(Value::Fields).collect()))
    }

    /// With a list of texts.
    pub fn texts(self, name: &'static str, members: impl IntoIterator<Item = impl ToString>) -> Self {
        self.value(name, Value::List(members.into_iter().map(|text| Value::Text(text.to_string())).collect()))
    }

    /// With any value.
    pub fn value(mut self, name: &'static str, value: Value) -> Self {
        self.0.push((name, value));
        self
    }

    /// Adds the next page of the same listing: members of lists are appended, and values beside the lists are
    /// those of the last page.
    pub fn append(&mut self, page: Answer) {
        self.0.retain(|(name, value)| matches!(value, Value::List(_)) || page.get(name).is_some());
        for (name, value) in page.0 {
            match (self.0.iter_mut().find(|(found, _)| *found == name), value) {
                (Some((_, Value::List(members))), Value::List(more)) => members.extend(more),
                (Some((_, found)), value) => *found = value,
                (None, value) => self.0.push((name, value)),
            }
        }
    }

    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// The text at a path of names.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        let (first, rest) = path.split_first()?;
        match self.get(first)? {
            Value::Text(text) | Value::Document(text) if rest.is_empty() => Some(text),
            Value::Fields(fields) => fields.text_at(rest),
            _ => None,
        }
    }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Text(text) | Value::Document(text) => serializer.serialize_str(text),
            Value::Time(unix_ms) => serializer.serialize_u64(*unix_ms),
            Value::List(members) => serializer.collect_seq(members),
            Value::Fields(fields) => fields.serialize(serializer),
            Value::Map(entries) => serializer.collect_map(entries.iter().map(|(key, value)| (key, value))),
        }
    }
}
