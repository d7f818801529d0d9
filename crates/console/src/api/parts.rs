//! Parts of requests that several calls look at.

use axum::http::HeaderMap;
use axum::http::header::COOKIE;

/// The cookie with the token of a session.
pub(super) const COOKIE_NAME: &str = "atoll_session";
/// Name of calls of the admin API in audit logs.
pub const AUDIT_SOURCE: &str = "admin";

/// The cookie of this name.
pub(super) fn cookie_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut cookies = cookies.flat_map(|value| value.split(';')).filter_map(|one| one.trim().split_once('='));
    cookies.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Names and values of a query.
pub(super) fn decoded_query(query: Option<&str>) -> Vec<(String, String)> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

/// A call about the session itself.
pub(super) enum OwnCall {
    Show,
    End,
    ChangePassword,
    EnrolTotp,
    ConfirmTotp,
}

/// Returns the call about the session itself that has this id, if there is one.
pub(super) fn own_call(id: &str) -> Option<OwnCall> {
    match id {
        "getSession" => Some(OwnCall::Show),
        "endSession" => Some(OwnCall::End),
        "changePassword" => Some(OwnCall::ChangePassword),
        "enrolTotp" => Some(OwnCall::EnrolTotp),
        "confirmTotp" => Some(OwnCall::ConfirmTotp),
        _ => None,
    }
}
