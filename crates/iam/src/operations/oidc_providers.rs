//! Issuers of OpenID Connect tokens.

use atoll_types::identities::OidcProviderRecord;
use atoll_types::records::RECORD_FORMAT;

use super::{Answer, Call, IamError, Outcome};
use crate::arn::{oidc_provider_arn, parse_oidc_provider_arn};
use crate::identities::{Record, RecordName, provider_id};

const PROVIDERS_MAX: usize = 100;
const CLIENT_IDS_MAX: usize = 100;
const THUMBPRINTS_MAX: usize = 5;
const CHARS_MAX: usize = 255;

/// Returns true if an issuer's keys may be fetched from this URL: over TLS, or, for tests, from this host.
pub(crate) fn is_issuer_url(url: &str) -> bool {
    let is_clean = url.len() <= CHARS_MAX && url.chars().all(|c| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c));
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let is_local = host == "localhost" || host == "127.0.0.1";
    is_clean && !host.is_empty() && (scheme == "https" || scheme == "http" && is_local)
}

fn named(call: &mut Call<'_>) -> Result<OidcProviderRecord, IamError> {
    let arn = call.parameters.required("OpenIDConnectProviderArn")?;
    if parse_oidc_provider_arn(&arn).is_none() {
        return IamError::invalid(format!("Invalid ARN: {arn}"));
    }
    let found = call.context.identities.oidc_provider_by_arn(&arn);
    let found = found.filter(|provider| provider.account == call.context.account_id());
    found
        .map(|provider| (**provider).clone())
        .ok_or_else(|| IamError::NoSuchEntity(format!("OpenIDConnect Provider not found for arn {arn}")))
}

fn client_id(id: String) -> Result<String, IamError> {
    match (1..=CHARS_MAX).contains(&id.len()) {
        true => Ok(id),
        false => Err(IamError::InvalidInput(format!("A client ID has 1 to {CHARS_MAX} characters"))),
    }
}

fn thumbprints(call: &mut Call<'_>) -> Result<Vec<String>, IamError> {
    let thumbprints = call.parameters.texts("ThumbprintList")?;
    if thumbprints.len() > THUMBPRINTS_MAX {
        return Err(IamError::LimitExceeded { quota: "ThumbprintListLengthExceeded", limit: THUMBPRINTS_MAX });
    }
    match thumbprints.iter().find(|text| text.len() != 40 || !text.chars().all(|c| c.is_ascii_hexdigit())) {
        Some(wrong) => IamError::invalid(format!("The thumbprint '{wrong}' is not 40 hexadecimal digits")),
        None => Ok(thumbprints),
    }
}

pub(super) fn create(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let url = call.parameters.required("Url")?;
    let client_ids =
        call.parameters.texts("ClientIDList")?.into_iter().map(client_id).collect::<Result<_, _>>()?;
    let thumbprints = thumbprints(call)?;
    if !is_issuer_url(&url) {
        return IamError::invalid("Invalid Open ID Connect Provider URL: it must begin with https://");
    }
    let (identities, account) = (call.context.identities, call.context.account_id());
    if identities.oidc_provider(account, &url).is_some() {
        return Err(IamError::EntityAlreadyExists(format!("Provider with url {url} already exists.")));
    }
    if identities.oidc_providers(account).count() >= PROVIDERS_MAX {
        return Err(IamError::LimitExceeded { quota: "OpenIdConnectProvidersPerAccount", limit: PROVIDERS_MAX });
    }
    let provider = OidcProviderRecord {
        format: RECORD_FORMAT,
        account: account.into(),
        url,
        client_ids,
        thumbprints,
        created_unix_ms: call.context.now_ms,
    };
    check_client_ids(&provider)?;
    let answer = Answer::new().text("OpenIDConnectProviderArn", oidc_provider_arn(account, &provider.url));
    Outcome::put(Record::OidcProvider(provider), answer)
}

fn check_client_ids(provider: &OidcProviderRecord) -> Result<(), IamError> {
    match provider.client_ids.len() > CLIENT_IDS_MAX {
        true => Err(IamError::LimitExceeded { quota: "ClientIdsPerOpenIdConnectProvider", limit: CLIENT_IDS_MAX }),
        false => Ok(()),
    }
}

pub(super) fn get(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let provider = named(call)?;
    let answer = Answer::new()
        .text("Url", provider_id(&provider.url))
        .texts("ClientIDList", &provider.client_ids)
        .texts("ThumbprintList", &provider.thumbprints)
        .time("CreateDate", provider.created_unix_ms);
    Outcome::answer(answer)
}

pub(super) fn list(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let account = call.context.account_id();
    let providers = call.context.identities.oidc_providers(account);
    let arns = providers.map(|provider| Answer::new().text("Arn", oidc_provider_arn(account, &provider.url)));
    Outcome::answer(Answer::new().list("OpenIDConnectProviderList", arns))
}

pub(super) fn delete(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let provider = named(call)?;
    Outcome::delete(RecordName::oidc_provider(&provider.account, &provider.url))
}

pub(super) fn update_thumbprints(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut provider = named(call)?;
    provider.thumbprints = thumbprints(call)?;
    Outcome::put(Record::OidcProvider(provider), Answer::new())
}

pub(super) fn add_client_id(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut provider = named(call)?;
    provider.client_ids.insert(client_id(call.parameters.required("ClientID")?)?);
    check_client_ids(&provider)?;
    Outcome::put(Record::OidcProvider(provider), Answer::new())
}

pub(super) fn remove_client_id(call: &mut Call<'_>) -> Result<Outcome, IamError> {
    let mut provider = named(call)?;
    // AWS removes what is not there, too.
    provider.client_ids.remove(&call.parameters.required("ClientID")?);
    Outcome::put(Record::OidcProvider(provider), Answer::new())
}

#[cfg(test)]
mod tests {
    use super::is_issuer_url;

    #[test]
    fn issuers_are_reached_over_tls_or_on_this_host() {
        for right in
            ["https://a.example", "https://a.example:8443/realms/x", "http://127.0.0.1:9/x", "http://localhost:1"]
        {
            assert!(is_issuer_url(right), "{right}");
        }
        let wrong = [
            "http://a.example",
            "https://",
            "ftp://a.example",
            "https://a.example?x",
            "http://127.0.0.1@evil",
            "x",
        ];
        for wrong in wrong {
            assert!(!is_issuer_url(wrong), "{wrong}");
        }
    }
}
