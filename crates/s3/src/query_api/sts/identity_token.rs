//! Identity tokens of OpenID Connect: signed claims of an issuer about who bears them.

use std::collections::BTreeSet;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;

use crate::query_api::error::QueryError;

/// How far the clocks of issuers may be off, in seconds.
const SKEW: u64 = 60;
const CHARS_MAX: usize = 20_000;

/// What a token says of who bears it.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    pub sub: String,
    aud: Audiences,
    pub azp: Option<String>,
    /// Some issuers tell parts of seconds.
    iat: f64,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Some(Vec<String>),
}

impl Claims {
    /// The first of those for whom the token was made that is among these.
    pub(super) fn audience<'a>(&'a self, known: &BTreeSet<String>) -> Option<&'a str> {
        let all = match &self.aud {
            Audiences::One(one) => std::slice::from_ref(one),
            Audiences::Some(some) => some.as_slice(),
        };
        all.iter().find(|audience| known.contains(*audience)).map(String::as_str)
    }
}

fn invalid(text: impl std::fmt::Display) -> QueryError {
    QueryError::InvalidIdentityToken(format!("The web identity token cannot be validated: {text}"))
}

fn refused(error: &jsonwebtoken::errors::Error) -> QueryError {
    match error.kind() {
        ErrorKind::ExpiredSignature => QueryError::ExpiredIdentityToken,
        _ => invalid(error),
    }
}

/// A token, of which nothing is verified yet.
pub(super) struct IdentityToken<'a> {
    text: &'a str,
    header: Header,
    /// Who is said to have made it.
    pub issuer: String,
}

impl<'a> IdentityToken<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, QueryError> {
        #[derive(Deserialize)]
        struct Issuer {
            iss: String,
        }
        if text.len() > CHARS_MAX {
            return Err(invalid(format!("it has more than {CHARS_MAX} characters")));
        }
        let header = decode_header(text).map_err(|error| invalid(&error))?;
        if !matches!(header.alg, Algorithm::RS256 | Algorithm::ES256) {
            return Err(invalid(format!("{:?} is neither RS256 nor ES256", header.alg)));
        }
        if header.crit.is_some() {
            return Err(invalid("its header has parts that must be understood"));
        }
        let Issuer { iss } =
            jsonwebtoken::dangerous::insecure_decode_claims(text).map_err(|error| invalid(&error))?;
        Ok(IdentityToken { text, header, issuer: iss })
    }

    pub(super) fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// What it says, if its issuer has signed it with this key, for one of these audiences, and it is of now.
    pub(super) fn verify(
        &self,
        key: &Jwk,
        audiences: &BTreeSet<String>,
        now_ms: u64,
    ) -> Result<Claims, QueryError> {
        if !fits(key, self.header.alg) {
            return Err(invalid(format!("its key is not for {:?}", self.header.alg)));
        }
        let mut validation = Validation::new(self.header.alg);
        validation.leeway = SKEW;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&audiences.iter().collect::<Vec<_>>());
        validation.set_required_spec_claims(&["exp", "iss", "sub", "aud"]);
        let key = DecodingKey::from_jwk(key).map_err(|error| invalid(&error))?;
        let claims = decode::<Claims>(self.text, &key, &validation).map_err(|error| refused(&error))?.claims;
        let latest = now_ms / 1_000 + SKEW;
        if claims.iat > latest as f64 {
            return Err(invalid("it was made in the future"));
        }
        Ok(claims)
    }
}

/// Whether signatures of this kind are made with this key.
fn fits(key: &Jwk, algorithm: Algorithm) -> bool {
    let is_named = |name: KeyAlgorithm| key.common.key_algorithm.is_none_or(|named| named == name);
    match (&key.algorithm, algorithm) {
        (AlgorithmParameters::RSA(_), Algorithm::RS256) => is_named(KeyAlgorithm::RS256),
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES256) => {
            key.curve == EllipticCurve::P256 && is_named(KeyAlgorithm::ES256)
        }
        _ => false,
    }
}
