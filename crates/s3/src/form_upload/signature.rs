//! Signer of the policy of a form. Both versions sign the text of the policy, so in both it binds everything that
//! it names; neither covers the file beyond the policy's conditions on it.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use s3s::auth::{Credentials, S3Auth};
use s3s::{S3Error, S3Result, s3_error};

use super::fields::Fields;
use crate::authentication::{Authentication, Mechanism};
use crate::signing::{Scope, is_signing_time, signing_key, unix_ms_of};

const V4_ALGORITHM: &str = "AWS4-HMAC-SHA256";
const V4_FIELDS: &[&str] = &["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
const V2_FIELDS: &[&str] = &["awsaccesskeyid", "signature"];

/// A form's fields of its signature.
#[derive(Debug)]
pub(super) struct Proof<'a> {
    access_key: &'a str,
    policy: &'a str,
    signature: &'a str,
    /// For version 4.
    scope: Option<Scope<'a>>,
    signed_unix_ms: Option<u64>,
}

fn mismatch() -> S3Error {
    s3_error!(
        SignatureDoesNotMatch,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method"
    )
}

impl<'a> Proof<'a> {
    /// None if the form is not signed.
    pub(super) fn find(fields: &'a Fields) -> S3Result<Option<Self>> {
        let has_one = |names: &[&str]| names.iter().any(|name| fields.get(name).is_some());
        match (has_one(V4_FIELDS), has_one(V2_FIELDS)) {
            (true, true) => Err(s3_error!(InvalidArgument, "Only one auth mechanism allowed")),
            (false, false) if fields.get("policy").is_none() => Ok(None),
            (false, true) => Ok(Some(Proof {
                access_key: fields.required("awsaccesskeyid")?,
                policy: fields.required("policy")?,
                signature: fields.required("signature")?,
                scope: None,
                signed_unix_ms: None,
            })),
            (_, false) => Self::of_version_4(fields).map(Some),
        }
    }

    fn of_version_4(fields: &'a Fields) -> S3Result<Self> {
        let algorithm = fields.required("x-amz-algorithm")?;
        if algorithm != V4_ALGORITHM {
            return Err(s3_error!(InvalidArgument, "X-Amz-Algorithm only supports \"{V4_ALGORITHM}\""));
        }
        let credential = fields.required("x-amz-credential")?;
        // An access key may contain slashes.
        let parts: Vec<&str> = credential.rsplitn(5, '/').collect();
        let ["aws4_request", service @ "s3", region, date, access_key] = parts[..] else {
            return Err(s3_error!(
                InvalidArgument,
                "X-Amz-Credential must be KEY/YYYYMMDD/REGION/s3/aws4_request, not '{credential}'"
            ));
        };
        let time = fields.required("x-amz-date")?;
        if !is_signing_time(time) || time.get(..8) != Some(date) {
            return Err(s3_error!(
                InvalidArgument,
                "X-Amz-Date must be YYYYMMDDTHHMMSSZ, on the day of X-Amz-Credential, not '{time}'"
            ));
        }
        let (policy, signature) = (fields.required("policy")?, fields.required("x-amz-signature")?);
        let scope = Some(Scope { date, region, service });
        Ok(Proof { access_key, policy, signature, scope, signed_unix_ms: unix_ms_of(time) })
    }

    pub(super) fn authentication(&self) -> Authentication {
        let mechanism = if self.scope.is_some() { Mechanism::Form } else { Mechanism::FormOfVersion2 };
        Authentication { mechanism, signed_unix_ms: self.signed_unix_ms, ..Authentication::default() }
    }

    /// The user who signed, if one did.
    pub(super) async fn verify(&self, users: &dyn S3Auth, own_region: &str) -> S3Result<Credentials> {
        if let Some(Scope { region, .. }) = &self.scope
            && *region != own_region
        {
            return Err(s3_error!(
                AuthorizationHeaderMalformed,
                "The signature is malformed; the region '{region}' is wrong; expecting '{own_region}'"
            ));
        }
        let secret_key = users.get_secret_key(self.access_key).await?;
        self.compare(secret_key.expose())?;
        Ok(Credentials { access_key: self.access_key.to_owned(), secret_key })
    }

    /// Takes the same time for every wrong signature.
    fn compare(&self, secret: &str) -> S3Result<()> {
        let (key, signature) = match &self.scope {
            Some(scope) => (signing_key(secret, scope), hex::decode(self.signature).map_err(|_| mismatch())?),
            None => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
                (key, BASE64.decode(self.signature).map_err(|_| mismatch())?)
            }
        };
        hmac::verify(&key, self.policy.as_bytes(), &signature).map_err(|_| mismatch())
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use s3s::auth::SimpleAuth;

    use super::*;

    const KEY: &str = "AKIAIOSFODNN7EXAMPLE";
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn verify(fields: &Fields) -> Result<String, String> {
        let users = SimpleAuth::from_single(KEY, SECRET);
        let verified = match Proof::find(fields) {
            Ok(Some(proof)) => block_on(proof.verify(&users, "us-east-1")),
            Ok(None) => return Ok("nobody".into()),
            Err(error) => Err(error),
        };
        verified.map(|user| user.access_key).map_err(|error| error.code().as_str().to_owned())
    }

    /// Computed with Python's hmac, as the documentation of S3 says.
    fn v4(change: impl FnOnce(&mut Fields)) -> Result<String, String> {
        let mut fields = Fields::from([
            ("policy", "eyJleHBpcmF0aW9uIjoiMjAxNSJ9"),
            ("x-amz-algorithm", V4_ALGORITHM),
            ("x-amz-credential", "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request"),
            ("x-amz-date", "20151229T000000Z"),
            ("x-amz-signature", "ed4b46743efa514a7e79031a8f1e351877c59ae2a747e8b0aacf79482de378ff"),
        ]);
        change(&mut fields);
        verify(&fields)
    }

    fn v2(change: impl FnOnce(&mut Fields)) -> Result<String, String> {
        let mut fields = Fields::from([
            ("policy", "eyJleHBpcmF0aW9uIjoiMjAxNSJ9"),
            ("awsaccesskeyid", KEY),
            ("signature", "O4IWR2PNetItAm2xii4hWSZdNFo="),
        ]);
        change(&mut fields);
        verify(&fields)
    }

    #[test]
    fn good_signatures_are_taken() {
        assert_eq!(v4(|_| {}), Ok(KEY.into()));
        assert_eq!(v2(|_| {}), Ok(KEY.into()));
        assert_eq!(verify(&Fields::from([("key", "k")])), Ok("nobody".into()));
    }

    #[test]
    fn wrong_ones_are_not() {
        let set =
            |name: &'static str, value: &'static str| move |fields: &mut Fields| fields.set(name, value.into());
        let wrong = |code: &str| Err(code.to_owned());
        for (name, value, code) in [
            ("policy", "eyJleHBpcmF0aW9uIjoiMjAxNiJ9", "SignatureDoesNotMatch"),
            ("x-amz-signature", "00", "SignatureDoesNotMatch"),
            ("x-amz-signature", "nonsense", "SignatureDoesNotMatch"),
            ("x-amz-algorithm", "AWS4-HMAC-SHA1", "InvalidArgument"),
            ("x-amz-credential", "other/20151229/us-east-1/s3/aws4_request", "NotSignedUp"),
            ("x-amz-credential", "AKIAIOSFODNN7EXAMPLE/20151230/us-east-1/s3/aws4_request", "InvalidArgument"),
            ("x-amz-credential", "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/ec2/aws4_request", "InvalidArgument"),
            ("x-amz-credential", "20151229/us-east-1/s3/aws4_request", "InvalidArgument"),
            (
                "x-amz-credential",
                "AKIAIOSFODNN7EXAMPLE/20151229/eu-west-1/s3/aws4_request",
                "AuthorizationHeaderMalformed",
            ),
            ("x-amz-date", "20151229", "InvalidArgument"),
            ("awsaccesskeyid", KEY, "InvalidArgument"),
        ] {
            assert_eq!(v4(set(name, value)), wrong(code), "{name}: {value}");
        }
        for (name, value, code) in [
            ("policy", "eyJleHBpcmF0aW9uIjoiMjAxNiJ9", "SignatureDoesNotMatch"),
            ("signature", "AAAA", "SignatureDoesNotMatch"),
            ("signature", "=backwards", "SignatureDoesNotMatch"),
            ("awsaccesskeyid", "other", "NotSignedUp"),
        ] {
            assert_eq!(v2(set(name, value)), wrong(code), "{name}: {value}");
        }
    }

    #[test]
    fn a_signature_is_whole_or_none() {
        for fields in [
            Fields::from([("policy", "p")]),
            Fields::from([("policy", "p"), ("awsaccesskeyid", KEY)]),
            Fields::from([("policy", "p"), ("signature", "s")]),
            Fields::from([("awsaccesskeyid", KEY), ("signature", "s")]),
            Fields::from([("x-amz-date", "20151229T000000Z")]),
        ] {
            assert_eq!(verify(&fields), Err("InvalidArgument".into()), "{fields:?}");
        }
    }
}
