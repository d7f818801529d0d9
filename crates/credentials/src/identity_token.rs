//! Identity tokens of OpenID Connect: signed claims of an issuer about the bearer.

use std::collections::BTreeSet;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::issuer_keys::IssuerKeys;

/// Skew of the clocks of issuers of accounts, in seconds.
pub const SKEW_SECONDS: u64 = 60;
const CHARS_MAX: usize = 20_000;
/// OpenID Connect Core bounds a subject so.
const SUBJECT_CHARS_MAX: usize = 255;

/// Claims of a token about its bearer.
#[derive(Debug, Deserialize)]
pub struct Claims {
    /// Subject: the bearer's id at the issuer.
    pub sub: String,
    aud: Audiences,
    /// Client for which the issuer made the token.
    pub azp: Option<String>,
    nonce: Option<String>,
    /// Some issuers give fractions of seconds.
    iat: f64,
    /// The other claims.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// Why a token is not taken. It is for the log: strangers send tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Its time is over.
    #[error("it has expired")]
    Expired,
    /// It is no token, or not one for this client.
    #[error("{0}")]
    Invalid(String),
}

/// Required content of the token of a log-in.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedToken<'a> {
    /// The issuer, letter by letter.
    pub issuer: &'a str,
    /// The client that has begun the log-in.
    pub client_id: &'a str,
    /// The number that the client has sent with the log-in.
    pub nonce: &'a str,
    /// Allowed difference of clocks, in seconds.
    pub skew_seconds: u64,
    /// Unix time, in milliseconds.
    pub now_unix_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Some(Vec<String>),
}

impl Claims {
    fn audiences(&self) -> &[String] {
        match &self.aud {
            Audiences::One(one) => std::slice::from_ref(one),
            Audiences::Some(some) => some.as_slice(),
        }
    }

    /// Returns the first audience of the token that is among these.
    pub fn audience<'a>(&'a self, known: &BTreeSet<String>) -> Option<&'a str> {
        self.audiences().iter().find(|audience| known.contains(*audience)).map(String::as_str)
    }
}

fn invalid(text: impl std::fmt::Display) -> TokenError {
    TokenError::Invalid(text.to_string())
}

fn refused(error: &jsonwebtoken::errors::Error) -> TokenError {
    match error.kind() {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        _ => invalid(error),
    }
}

/// An unverified token.
pub struct IdentityToken<'a> {
    text: &'a str,
    header: Header,
    /// Issuer that the token names.
    pub issuer: String,
}

impl<'a> IdentityToken<'a> {
    /// Reads a token without verifying it.
    pub fn parse(text: &'a str) -> Result<Self, TokenError> {
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

    /// Id of the key that is said to have signed it.
    pub fn key_id(&self) -> Option<&str> {
        self.header.kid.as_deref()
    }

    /// Returns the claims, if the issuer has signed the token for the log-in that this client has begun.
    pub fn verify_as(&self, keys: &IssuerKeys, expected: &ExpectedToken<'_>) -> Result<Claims, TokenError> {
        if self.issuer != expected.issuer {
            return Err(invalid(format!("its issuer is '{}'", self.issuer)));
        }
        let key = keys.find(self.key_id()).ok_or_else(|| invalid("the issuer does not have its key"))?;
        let client = BTreeSet::from([expected.client_id.to_owned()]);
        let claims = self.verify(key, &client, expected.skew_seconds, expected.now_unix_ms)?;
        // A token for several clients names the one that has asked for it.
        match &claims.azp {
            Some(azp) if azp != expected.client_id => {
                return Err(invalid(format!("it was made for the client '{azp}'")));
            }
            None if claims.audiences().len() > 1 => {
                return Err(invalid("it does not say for which client it was made"));
            }
            _ => {}
        }
        if claims.nonce.as_deref() != Some(expected.nonce) {
            return Err(invalid("it belongs to another log-in"));
        }
        if claims.sub.is_empty() || claims.sub.chars().count() > SUBJECT_CHARS_MAX {
            return Err(invalid(format!("its subject does not have 1 to {SUBJECT_CHARS_MAX} characters")));
        }
        Ok(claims)
    }

    /// Returns its claims, if its issuer has signed it with this key, for one of these audiences, and it is valid now.
    pub fn verify(
        &self,
        key: &Jwk,
        audiences: &BTreeSet<String>,
        skew_seconds: u64,
        now_ms: u64,
    ) -> Result<Claims, TokenError> {
        if !fits(key, self.header.alg) {
            return Err(invalid(format!("its key is not for {:?}", self.header.alg)));
        }
        let mut validation = Validation::new(self.header.alg);
        validation.leeway = skew_seconds;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&audiences.iter().collect::<Vec<_>>());
        validation.set_required_spec_claims(&["exp", "iss", "sub", "aud"]);
        let key = DecodingKey::from_jwk(key).map_err(|error| invalid(&error))?;
        let claims = decode::<Claims>(self.text, &key, &validation).map_err(|error| refused(&error))?.claims;
        let latest = now_ms / 1_000 + skew_seconds;
        if claims.iat > latest as f64 {
            return Err(invalid("it was made in the future"));
        }
        Ok(claims)
    }
}

/// Returns true if signatures of this kind are made with this key.
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
