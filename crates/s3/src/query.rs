//! Query parameters as s3s reads them when it serves a request: names are decoded, and upper and lower case
//! differ. Checks of a request read them here, so that they judge the served request.

use std::borrow::Cow;

use http::Uri;

/// A parameter; most callers need the name alone.
pub(crate) struct Parameter<'a> {
    /// Decoded.
    pub name: Cow<'a, str>,
    /// Name and value as they are written.
    written: &'a str,
}

impl<'a> Parameter<'a> {
    fn decode(written: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
        form_urlencoded::parse(written.as_bytes()).next().unwrap_or_default()
    }

    fn new(written: &'a str) -> Self {
        let name = memchr::memchr(b'=', written.as_bytes()).map_or(written, |end| &written[..end]);
        // Decoding costs most of it, and hardly any name needs it.
        let is_plain = !name.bytes().any(|byte| matches!(byte, b'%' | b'+'));
        let name = if is_plain { Cow::Borrowed(name) } else { Parameter::decode(written).0 };
        Parameter { name, written }
    }

    /// Decoded.
    pub(crate) fn value(&self) -> Cow<'a, str> {
        Parameter::decode(self.written).1
    }
}

/// The parameters in their order.
pub(crate) fn parameters(uri: &Uri) -> impl Iterator<Item = Parameter<'_>> {
    let mut rest = uri.query().unwrap_or_default();
    let pairs = std::iter::from_fn(move || {
        let end = memchr::memchr(b'&', rest.as_bytes()).unwrap_or(rest.len());
        let pair = &rest[..end];
        let is_over = rest.is_empty();
        rest = rest.get(end + 1..).unwrap_or_default();
        (!is_over).then_some(pair)
    });
    pairs.filter(|pair| !pair.is_empty()).map(Parameter::new)
}

/// The value of the first parameter of this name.
pub(crate) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    parameters(uri).find(|found| found.name == name).map(|found| found.value())
}

/// Parameters that the shell looks for in the query of every request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub is_presigned: bool,
    /// For how many seconds it is valid, if that is a number.
    pub expires_seconds: Option<i64>,
    pub is_of_attributes: bool,
}

impl Marks {
    /// In one pass.
    pub(crate) fn of(uri: &Uri) -> Self {
        let mut marks = Marks::default();
        let mut expires = None;
        for parameter in parameters(uri) {
            match &*parameter.name {
                "X-Amz-Signature" => marks.is_presigned = true,
                "X-Amz-Expires" => expires = expires.or_else(|| Some(parameter.value())),
                "attributes" => marks.is_of_attributes = true,
                _ => {}
            }
        }
        marks.expires_seconds = expires.and_then(|seconds| seconds.parse().ok());
        marks
    }
}

/// Returns true if s3s takes a URL for a presigned one.
pub(crate) fn is_presigned(uri: &Uri) -> bool {
    parameter(uri, "X-Amz-Signature").is_some()
}

/// Returns true if s3s takes a URL for one that is presigned with version 2.
pub(crate) fn is_presigned_with_version_2(uri: &Uri) -> bool {
    parameter(uri, "Signature").is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parameters_are_those_of_a_form(query in "([a-cA%4+=&]|%41|%C3|%C3%A4){0,24}") {
            let uri: Uri = format!("/b/k?{query}").parse().unwrap();
            let found: Vec<_> = parameters(&uri).map(|one| (one.name.clone(), one.value())).collect();
            let expected: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn marks_are_found_however_they_are_written() {
        let marks = |query: &str| Marks::of(&format!("/b/k?{query}").parse().unwrap());
        let found = marks("%58-Amz-Signature=1&X-Amz-Expires=%360&X-Amz-Expires=9&attributes");
        let all = Marks { is_presigned: true, expires_seconds: Some(60), is_of_attributes: true };
        assert_eq!(found, all);
        assert_eq!(marks("x-amz-signature=1&signature=&X-Amz-Expires=soon&Attributes"), Marks::default());
    }

    #[test]
    fn names_are_decoded_and_case_counts() {
        let uri = Uri::from_static("/b/k?version%49d=a%2Bb+c&Prefix=p&empty&X%2DAmz-Signature=0");
        assert_eq!(parameter(&uri, "versionId").as_deref(), Some("a+b c"));
        assert_eq!(parameter(&uri, "versionid"), None);
        assert_eq!(parameter(&uri, "prefix"), None);
        assert_eq!(parameter(&uri, "empty").as_deref(), Some(""));
        assert!(is_presigned(&uri));
        assert!(!is_presigned(&Uri::from_static("/b/k?x-amz-signature=0")));
        assert_eq!(parameters(&Uri::from_static("/b/k")).count(), 0);
    }
}
