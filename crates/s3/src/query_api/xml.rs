//! Answers and errors as documents.

use atoll_iam::operations::{Answer, Value};
use jiff::Timestamp;
use quick_xml::Writer;
use quick_xml::escape::escape;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use super::Api;
use super::error::QueryError;
use crate::ops::url_encode;

impl Api {
    fn namespace(self) -> String {
        format!("https://{}.amazonaws.com/doc/{}/", self.name(), self.version())
    }
}

/// The answer to an action that was done. AWS leaves an empty result out of some answers, and its
/// clients take it all the same.
pub(super) fn answer(api: Api, action: &str, answer: &Answer, request_id: &str) -> String {
    let mut document = Document::new();
    document.open_root(&format!("{action}Response"), api);
    document.fields(&format!("{action}Result"), answer);
    document.open("ResponseMetadata");
    document.text("RequestId", request_id);
    document.close("ResponseMetadata");
    document.close(&format!("{action}Response"));
    document.into_text()
}

/// Returns the answer to a failed action.
pub(super) fn error(api: Api, error: &QueryError, request_id: &str) -> String {
    let mut document = Document::new();
    document.open_root("ErrorResponse", api);
    document.open("Error");
    document.text("Type", error.fault());
    document.text("Code", error.code());
    document.text("Message", &error.to_string());
    document.close("Error");
    document.text("RequestId", request_id);
    document.close("ErrorResponse");
    document.into_text()
}

struct Document(Writer<Vec<u8>>);

impl Document {
    fn new() -> Self {
        Document(Writer::new(Vec::new()))
    }

    fn into_text(self) -> String {
        String::from_utf8(self.0.into_inner()).expect("names and texts are UTF-8")
    }

    fn write(&mut self, event: Event<'_>) {
        self.0.write_event(event).expect("writing to memory does not fail");
    }

    fn open_root(&mut self, name: &str, api: Api) {
        let namespace = api.namespace();
        self.write(Event::Start(BytesStart::new(name).with_attributes([("xmlns", namespace.as_str())])));
    }

    fn open(&mut self, name: &str) {
        self.write(Event::Start(BytesStart::new(name)));
    }

    fn close(&mut self, name: &str) {
        self.write(Event::End(BytesEnd::new(name)));
    }

    fn text(&mut self, name: &str, text: &str) {
        let text: String = text.chars().map(writable).collect();
        // A parser would make a line feed of a carriage return.
        let escaped = escape(text).replace('\r', "&#xD;");
        self.open(name);
        self.write(Event::Text(BytesText::from_escaped(escaped)));
        self.close(name);
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

/// Returns the character, or the replacement character for one that XML has no way to write.
fn writable(char: char) -> char {
    match char {
        '\t' | '\n' | '\r' => char,
        '\0'..' ' | '\u{FFFE}' | '\u{FFFF}' => char::REPLACEMENT_CHARACTER,
        _ => char,
    }
}

/// Whole seconds, as AWS has them.
fn time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|unix_ms| Timestamp::from_millisecond(unix_ms).ok());
    time.map_or_else(String::new, |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
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
        let mut document = Document::new();
        document.text("T", "a\0\u{1b}\r\n\t\u{FFFF}é]]>");
        assert_eq!(document.into_text(), "<T>a\u{FFFD}\u{FFFD}&#xD;\n\t\u{FFFD}é]]&gt;</T>");
    }
}
