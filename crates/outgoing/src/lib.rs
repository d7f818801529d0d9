//! Calls over HTTP to addresses that others choose: an account, an operator, or the document of a foreign server.
//!
//! A [`Caller`] goes only to addresses that [`Rules`] allow. Addresses are checked after their names are resolved,
//! and connections are made to the checked addresses. Redirects are not followed, proxies of the environment are
//! not used, and each call has bounds on its time and on the bytes of its answer.
//!
//! This crate knows addresses and HTTP. It does not know the purpose of the calls.

mod caller;
mod classes;
mod networks;
mod resolver;
mod rules;
mod uniform;

pub use caller::{Answer, Caller, CallerSettings, OutgoingError};
pub use classes::Class;
pub use networks::{NETWORKS_MAX, Networks};
pub use reqwest::{Certificate, Method, RequestBuilder, StatusCode, Url, header};
pub use rules::{Chooser, Refusal, Rules, configure};
pub use uniform::failing_late;
