//! Cross-origin resource sharing: the rule of a bucket that matches a request, and the headers of its answer for
//! browsers. It gives no rights; it controls which requests a browser lets a page's script send and read.

use atoll_types::cors::CorsRule;
use http::{HeaderMap, HeaderValue, Method, header};

/// Names in `Access-Control-Request-Headers` that are looked at; no request may have more headers.
const ASKED_HEADERS_MAX: usize = 128;
/// In an origin or an allowed header it stands for any text.
const WILDCARD: char = '*';
const ANY_ORIGIN: &str = "*";
/// Headers that the `Access-Control-` headers of an answer depend on, for caches.
const DEPENDS_ON: HeaderValue =
    HeaderValue::from_static("Origin, Access-Control-Request-Headers, Access-Control-Request-Method");

/// Request of a browser on behalf of a script.
struct Asked<'a> {
    origin: &'a HeaderValue,
    method: &'a str,
    /// In lower case.
    headers: Vec<String>,
}

impl<'a> Asked<'a> {
    /// `None` if the request comes from no other origin. The headers of a preflight count on other
    /// requests, too, as in S3.
    fn of(method: &'a Method, headers: &'a HeaderMap) -> Option<Asked<'a>> {
        let origin = headers.get(header::ORIGIN)?;
        let method = match headers.get(header::ACCESS_CONTROL_REQUEST_METHOD) {
            Some(asked) => asked.to_str().unwrap_or_default(),
            None => method.as_str(),
        };
        let lines = headers.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).into_iter();
        let names = lines.flat_map(|line| line.to_str().unwrap_or("?").split(',').map(str::trim));
        let names = names.filter(|name| !name.is_empty()).map(str::to_ascii_lowercase);
        Some(Asked { origin, method, headers: names.take(ASKED_HEADERS_MAX + 1).collect() })
    }

    fn fits(&self, rule: &CorsRule) -> bool {
        let origin = self.origin.to_str().unwrap_or_default();
        let is_header_allowed = |name: &String| {
            rule.allowed_headers.iter().any(|allowed| matches(allowed, name, <[u8]>::eq_ignore_ascii_case))
        };
        rule.allowed_methods.iter().any(|allowed| allowed == self.method)
            && rule.allowed_origins.iter().any(|allowed| matches(allowed, origin, <[u8]>::eq))
            && self.headers.len() <= ASKED_HEADERS_MAX
            && self.headers.iter().all(is_header_allowed)
    }
}

/// Returns true if a text matches a pattern with at most one wildcard.
fn matches(pattern: &str, text: &str, is_same: fn(&[u8], &[u8]) -> bool) -> bool {
    let text = text.as_bytes();
    let Some((start, end)) = pattern.split_once(WILDCARD) else { return is_same(pattern.as_bytes(), text) };
    let Some((head, rest)) = text.split_at_checked(start.len()) else { return false };
    let Some(middle_bytes) = rest.len().checked_sub(end.len()) else { return false };
    is_same(start.as_bytes(), head) && is_same(end.as_bytes(), &rest[middle_bytes..])
}

/// The headers of the answer to a request, by the first rule that fits it. There are none if it comes
/// from no other origin or there are no rules.
pub(crate) fn answer_headers(rules: &[CorsRule], method: &Method, request: &HeaderMap) -> HeaderMap {
    let mut answer = HeaderMap::new();
    let Some(asked) = Asked::of(method, request).filter(|_| !rules.is_empty()) else { return answer };
    answer.insert(header::VARY, DEPENDS_ON);
    let Some(rule) = rules.iter().find(|rule| asked.fits(rule)) else { return answer };
    if rule.allowed_origins.iter().any(|allowed| allowed == ANY_ORIGIN) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(ANY_ORIGIN));
    } else {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, asked.origin.clone());
        answer.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    let lists = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, &rule.allowed_methods),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, &asked.headers),
        (header::ACCESS_CONTROL_EXPOSE_HEADERS, &rule.expose_headers),
    ];
    for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        if let Ok(value) = HeaderValue::try_from(list.join(", ")) {
            answer.insert(name, value);
        }
    }
    if let Some(seconds) = rule.max_age_seconds {
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(seconds));
    }
    answer
}

#[cfg(test)]
mod tests;
