//! Answers and errors as documents.

use std::fmt::Write;

use atoll_iam::operations::{Answer, Value};
use s3s::dto::{Timestamp, TimestampFormat};

use super::Api;
use super::error::QueryError;
use crate::clock::system_time;
use crate::ops::url_encode;

impl Api {
    fn namespace(self) -> String {
        format!("https://{}.amazonaws.com/doc/{}/", self.name(), self.version())
    }
}

/// The answer to an action that was done. AWS leaves an empty result out of some answers, and its
/// clients take it all the same.
pub(super) fn answer(api: Api, action: &str, answer: &Answer, request_id: &str) -> String {
    let mut document = Document::default();
    document.open_root(&format!("{action}Response"), api);
    document.fields(&format!("{action}Result"), answer);
    document.open("ResponseMetadata");
    document.text("RequestId", request_id);
    document.close("ResponseMetadata");
    document.close(&format!("{action}Response"));
    document.0
}

/// Returns the answer to a failed action.
pub(super) fn error(api: Api, error: &QueryError, request_id: &str) -> String {
    let mut document = Document::default();
    document.open_root("ErrorResponse", api);
    document.open("Error");
    document.text("Type", error.fault());
    document.text("Code", error.code());
    document.text("Message", &error.to_string());
    document.close("Error");
    document.text("RequestId", request_id);
    document.close("ErrorResponse");
    document.0
}

#[derive(Default)]
struct Document(String);

impl Document {
    fn open_root(&mut self, name: &str, api: Api) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "<{name} xmlns=\"{}\">", api.namespace());
    }

    fn open(&mut self, name: &str) {
        self.0.extend(["<", name, ">"]);
    }

    fn close(&mut self, name: &str) {
        self.0.extend(["</", name, ">"]);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.open(name);
        text.chars().for_each(|char| self.push_escaped(char));
        self.close(name);
    }

    fn push_escaped(&mut self, char: char) {
        match char {
            '&' => self.0.push_str("&amp;"),
            '<' => self.0.push_str("&lt;"),
            '>' => self.0.push_str("&gt;"),
            '"' => self.0.push_str("&quot;"),
            '\'' => self.0.push_str("&apos;"),
            // A parser would make a line feed of it.
            '\r' => self.0.push_str("&#xD;"),
            '\t' | '\n' => self.0.push(char),
            // XML has no way to write these.
            '\0'..' ' | '\u{FFFE}' | '\u{FFFF}' => self.0.push(char::REPLACEMENT_CHARACTER),
            _ => self.0.push(char),
        }
    }

    fn fields(&mut self, name: &str, fields: &Answer) {
        self.open(name);
        for (name, value) in &fields.0 {
            self.value(name, value);
        }
        self.close(name);
    }

    fn value(&mut self, name: &str, value: &Value) {
        match value {
            Value::Text(text) => self.text(name, text),
            Value::Document(document) => self.text(name, &percent_encoded(document)),
            Value::Time(unix_ms) => self.text(name, &time(*unix_ms)),
            Value::Fields(fields) => self.fields(name, fields),
            Value::List(members) => {
                self.open(name);
                members.iter().for_each(|member| self.value("member", member));
                self.close(name);
            }
            Value::Map(entries) => {
                self.open(name);
                for (key, value) in entries {
                    self.open("entry");
                    self.text("key", key);
                    self.text("value", value);
                    self.close("entry");
                }
                self.close(name);
            }
        }
    }
}

/// As RFC 3986 has it: a slash is encoded, too.
fn percent_encoded(text: &str) -> String {
    url_encode(text).replace('/', "%2F")
}

/// Whole seconds, as AWS has them.
fn time(unix_ms: u64) -> String {
    let time = Timestamp::from(system_time(unix_ms - unix_ms % 1_000));
    let mut text = Vec::new();
    match time.format(TimestampFormat::DateTime, &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).replace(".000Z", "Z"),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_form_of_aws() {
        let answered = Answer::new()
            .fields("User", Answer::new().text("UserName", "a<b>&\"c'").time("CreateDate", 1_700_000_000_999))
            .value("Document", Value::Document(r#"{"a": "b/c~é"}"#.into()))
            .texts("Names", ["x", "y"])
            .list("Tags", [Answer::new().text("Key", "k")])
            .value("SummaryMap", Value::Map(vec![("Users".into(), "1".into())]));
        let expected = concat!(
            "<GetXResponse xmlns=\"https://iam.amazonaws.com/doc/2010-05-08/\"><GetXResult>",
            "<User><UserName>a&lt;b&gt;&amp;&quot;c&apos;</UserName><CreateDate>2023-11-14T22:13:20Z</CreateDate></User>",
            "<Document>%7B%22a%22%3A%20%22b%2Fc~%C3%A9%22%7D</Document>",
            "<Names><member>x</member><member>y</member></Names>",
            "<Tags><member><Key>k</Key></member></Tags>",
            "<SummaryMap><entry><key>Users</key><value>1</value></entry></SummaryMap>",
            "</GetXResult><ResponseMetadata><RequestId>7</RequestId></ResponseMetadata></GetXResponse>",
        );
        assert_eq!(answer(Api::Iam, "GetX", &answered, "7"), expected);
    }

    #[test]
    fn errors_have_the_form_of_aws() {
        let expected = concat!(
            "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>",
            "<Code>AccessDenied</Code><Message>no &lt;b&gt;</Message></Error><RequestId>7</RequestId></ErrorResponse>",
        );
        assert_eq!(error(Api::Sts, &QueryError::denied("no <b>"), "7"), expected);
        let broken = error(Api::Sts, &QueryError::Internal("secret".into()), "7");
        assert!(broken.contains("<Type>Receiver</Type>") && !broken.contains("secret"), "{broken}");
    }

    #[test]
    fn no_text_breaks_a_document() {
        let mut document = Document::default();
        document.text("T", "a\0\u{1b}\r\n\t\u{FFFF}é]]>");
        assert_eq!(document.0, "<T>a\u{FFFD}\u{FFFD}&#xD;\n\t\u{FFFD}é]]&gt;</T>");
    }
}
