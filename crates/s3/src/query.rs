//! Query parameters as s3s reads them when it serves a request: names are decoded, and upper and lower
//! case differ. What judges a request reads them here, so that it judges what is served.

use std::borrow::Cow;

use http::Uri;

/// Names and values of the parameters, decoded, in their order.
pub(crate) fn parameters(uri: &Uri) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
}

/// The value of the first parameter of this name.
pub(crate) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    parameters(uri).find(|(found, _)| found == name).map(|(_, value)| value)
}

/// Whether s3s takes a URL for one that is presigned.
pub(crate) fn is_presigned(uri: &Uri) -> bool {
    parameter(uri, "X-Amz-Signature").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

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
