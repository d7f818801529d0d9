//! An endpoint's answer to LIST (Amazon S3, "ListObjectsV2", response syntax).

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::error::BenchError;

/// A page of names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub keys: Vec<String>,
    /// True if there are more behind them.
    pub is_truncated: bool,
}

impl Page {
    /// Reads the answer. Names are of letters, digits and hyphens here, which XML and URLs leave as
    /// they are.
    pub fn parse(text: &[u8]) -> Result<Page, BenchError> {
        let wrong = |detail: String| BenchError::S3(format!("the answer to LIST is not understood: {detail}"));
        let mut reader = Reader::from_reader(text);
        let mut page = Page { keys: Vec::new(), is_truncated: false };
        let mut path: Vec<Vec<u8>> = Vec::new();
        loop {
            match reader.read_event().map_err(|error| wrong(error.to_string()))? {
                Event::Start(element) => {
                    path.push(element.local_name().as_ref().to_vec());
                    if path_is(&path, &[b"ListBucketResult", b"Contents", b"Key"]) {
                        page.keys.push(String::new());
                    }
                }
                Event::End(_) => drop(path.pop()),
                Event::Text(text) => {
                    let text = String::from_utf8_lossy(&text);
                    if path_is(&path, &[b"ListBucketResult", b"Contents", b"Key"]) {
                        page.keys.last_mut().expect("it was begun with the element").push_str(&text);
                    } else if path_is(&path, &[b"ListBucketResult", b"IsTruncated"]) {
                        page.is_truncated = text.trim() == "true";
                    }
                }
                Event::Eof if path.is_empty() => return Ok(page),
                Event::Eof => return Err(wrong("it ends in the middle".into())),
                _ => {}
            }
        }
    }
}

fn path_is(path: &[Vec<u8>], names: &[&[u8]]) -> bool {
    path.iter().map(Vec::as_slice).eq(names.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_whether_there_are_more_are_read() {
        let text = br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><KeyCount>2</KeyCount>
            <IsTruncated>true</IsTruncated><Contents><Key>bench-0-00000001</Key><Size>1</Size></Contents>
            <Contents><Key>bench-0-00000002</Key><Owner><ID>x</ID></Owner></Contents>
            <CommonPrefixes><Prefix>no/</Prefix></CommonPrefixes></ListBucketResult>"#;
        let page = Page::parse(text).unwrap();
        assert_eq!(page.keys, ["bench-0-00000001", "bench-0-00000002"]);
        assert!(page.is_truncated);
        let empty = Page::parse(b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>").unwrap();
        assert_eq!(empty, Page { keys: Vec::new(), is_truncated: false });
    }

    #[test]
    fn an_invalid_listing_is_an_error() {
        for text in [b"<ListBucketResult><Contents>".as_slice(), b"<a></b>", b"<ListBucketResult"] {
            assert!(Page::parse(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }
}
