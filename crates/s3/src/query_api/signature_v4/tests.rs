//! Signatures against a signer of its own, which knows nothing of the one that verifies.

use aws_lc_rs::{digest, hmac};
use http::Request;

use super::*;

const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
/// 2023-11-14T22:13:20Z.
const NOW_MS: u64 = 1_700_000_000_000;
const BODY: &[u8] = b"Action=ListUsers&Version=2010-05-08";

struct Signer {
    credential: String,
    time: &'static str,
    signed: &'static [(&'static str, &'static str)],
}

impl Signer {
    fn new() -> Self {
        Signer {
            credential: format!("{KEY}/20231114/us-east-1/iam/aws4_request"),
            time: "20231114T221320Z",
            signed: &[("host", "iam.example:9000"), ("x-amz-date", "20231114T221320Z")],
        }
    }

    fn sign(&self) -> String {
        let mac = |key: &[u8], text: &str| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
        };
        let hash = |bytes: &[u8]| hex::encode(digest::digest(&digest::SHA256, bytes));
        let mut canonical = "POST\n/\n\n".to_owned();
        for (name, value) in self.signed {
            canonical += &format!("{name}:{value}\n");
        }
        let names: Vec<&str> = self.signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        canonical += &format!("\n{names}\n{}", hash(BODY));
        let scope = self.credential.split_once('/').unwrap().1;
        let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", self.time, hash(canonical.as_bytes()));
        let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part));
        let signature = hex::encode(mac(&key, &text));
        format!("AWS4-HMAC-SHA256 Credential={}, SignedHeaders={names}, Signature={signature}", self.credential)
    }
}

fn parts(authorization: &str, more: &[(&str, &str)]) -> Parts {
    let mut request =
        Request::post("/").header("host", "iam.example:9000").header("x-amz-date", "20231114T221320Z");
    request = request.header("authorization", authorization);
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn verified(parts: &Parts, body: &[u8], now_ms: u64) -> Result<String, &'static str> {
    let verified = Signature::find(&parts.headers).and_then(|signature| {
        signature.check_scope("iam", &["us-east-1", "eu-1"], now_ms)?;
        signature.verify(SECRET, parts, body)?;
        Ok(signature.access_key.to_owned())
    });
    verified.map_err(|error| error.code())
}

#[test]
fn good_signatures_are_taken() {
    let authorization = Signer::new().sign();
    assert_eq!(verified(&parts(&authorization, &[]), BODY, NOW_MS), Ok(KEY.into()));
    let squeezed = authorization.replace(", ", ",");
    assert_eq!(verified(&parts(&squeezed, &[]), BODY, NOW_MS), Ok(KEY.into()));
    let hash = hex::encode(sha256(BODY));
    let with_hash = parts(&authorization, &[("x-amz-content-sha256", &hash)]);
    assert_eq!(verified(&with_hash, BODY, NOW_MS), Ok(KEY.into()));
    let slash = Signer { credential: "a/b/20231114/eu-1/iam/aws4_request".into(), ..Signer::new() };
    assert_eq!(Signature::find(&parts(&slash.sign(), &[]).headers).unwrap().access_key, "a/b");
}

/// `post-vanilla` and `post-x-www-form-urlencoded` of AWS's test suite for signatures of version 4.
#[test]
fn published_signatures_are_taken() {
    let (form, body) = ("application/x-www-form-urlencoded", b"Param1=value1");
    for (signed, signature, content_type, body) in [
        ("host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b", None, &b""[..]),
        (
            "content-type;host;x-amz-date",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            Some(form),
            &body[..],
        ),
    ] {
        let credential = format!("{KEY}/20150830/us-east-1/service/aws4_request");
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={signed}, Signature={signature}");
        let request = Request::post("/").header("host", "example.amazonaws.com");
        let request = request.header("x-amz-date", "20150830T123600Z").header("authorization", authorization);
        let request =
            content_type.into_iter().fold(request, |request, value| request.header("content-type", value));
        let parts = request.body(()).unwrap().into_parts().0;
        let found = Signature::find(&parts.headers).unwrap();
        assert!(found.verify(SECRET, &parts, body).is_ok(), "{signed}");
        assert!(found.verify(SECRET, &parts, b"Param1=value2").is_err(), "{signed}");
    }
}

#[test]
fn signed_headers_are_made_canonical() {
    let signed: &[(&str, &str)] =
        &[("host", "iam.example:9000"), ("x-amz-date", "20231114T221320Z"), ("x-list", "a b,c")];
    let authorization = Signer { signed, ..Signer::new() }.sign();
    let sent = parts(&authorization, &[("x-list", "  a   b "), ("x-list", "c")]);
    assert_eq!(verified(&sent, BODY, NOW_MS), Ok(KEY.into()));
    let other = parts(&authorization, &[("x-list", "c"), ("x-list", "a b")]);
    assert_eq!(verified(&other, BODY, NOW_MS), Err("SignatureDoesNotMatch"));
    assert_eq!(verified(&parts(&authorization, &[]), BODY, NOW_MS), Err("IncompleteSignature"));
}

#[test]
fn in_http_2_the_host_is_in_the_address() {
    let authorization = Signer::new().sign();
    let mut sent = parts(&authorization, &[]);
    sent.headers.remove("host");
    assert_eq!(verified(&sent, BODY, NOW_MS), Err("IncompleteSignature"));
    sent.uri = http::Uri::from_static("https://iam.example:9000/");
    assert_eq!(verified(&sent, BODY, NOW_MS), Ok(KEY.into()));
}

#[test]
fn whatever_was_changed_is_noticed() {
    let authorization = Signer::new().sign();
    let wrong = Err("SignatureDoesNotMatch");
    assert_eq!(verified(&parts(&authorization, &[]), b"Action=DeleteUser", NOW_MS), wrong);
    let unsigned = parts(&authorization, &[("x-amz-content-sha256", "UNSIGNED-PAYLOAD")]);
    assert_eq!(verified(&unsigned, BODY, NOW_MS), wrong);
    let mut elsewhere = parts(&authorization, &[]);
    elsewhere.headers.insert("host", http::HeaderValue::from_static("other.example"));
    assert_eq!(verified(&elsewhere, BODY, NOW_MS), wrong);
    let (start, signature) = authorization.split_once("Signature=").unwrap();
    for other in ["", "00", "nonsense", &signature[2..], &signature.replace(&signature[..1], "z")] {
        let sent = parts(&format!("{start}Signature={other}"), &[]);
        assert_eq!(verified(&sent, BODY, NOW_MS), wrong, "{other}");
    }
}

#[test]
fn signatures_are_for_one_service_region_and_time() {
    let with = |credential: &str| {
        let credential = format!("{KEY}/{credential}");
        verified(&parts(&Signer { credential, ..Signer::new() }.sign(), &[]), BODY, NOW_MS)
    };
    assert_eq!(with("20231114/eu-1/iam/aws4_request"), Ok(KEY.into()));
    for credential in [
        "20231114/us-east-1/sts/aws4_request",
        "20231114/us-east-1/s3/aws4_request",
        "20231114/eu-west-1/iam/aws4_request",
        "20231113/us-east-1/iam/aws4_request",
    ] {
        assert_eq!(with(credential), Err("SignatureDoesNotMatch"), "{credential}");
    }
    let authorization = Signer::new().sign();
    let minutes = 60_000;
    for (now_ms, is_taken) in [
        (NOW_MS + 15 * minutes, true),
        (NOW_MS + 16 * minutes, false),
        (NOW_MS - 15 * minutes, true),
        (NOW_MS - 16 * minutes, false),
    ] {
        assert_eq!(verified(&parts(&authorization, &[]), BODY, now_ms).is_ok(), is_taken, "{now_ms}");
    }
}

#[test]
fn a_signature_is_whole_or_none() {
    let whole = Signer::new().sign();
    let bare = Request::post("/").body(()).unwrap().into_parts().0;
    assert_eq!(verified(&bare, BODY, NOW_MS), Err("MissingAuthenticationToken"));
    for other in [
        "AWS4-HMAC-SHA256".to_owned(),
        whole.replace("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA1 "),
        whole.replace("Credential", "Credentials"),
        whole.replace("/aws4_request", ""),
        whole.replace("SignedHeaders=host;", "SignedHeaders="),
        whole.replace(";x-amz-date", ""),
        format!("{whole}, Signature=00"),
    ] {
        assert_eq!(verified(&parts(&other, &[]), BODY, NOW_MS), Err("IncompleteSignature"), "{other}");
    }
    let twice = parts(&whole, &[("authorization", whole.as_str())]);
    assert_eq!(verified(&twice, BODY, NOW_MS), Err("IncompleteSignature"));
    let two_dates = parts(&whole, &[("x-amz-date", "20231114T221320Z")]);
    assert_eq!(verified(&two_dates, BODY, NOW_MS), Err("IncompleteSignature"));
    let mut other_date = parts(&whole, &[]);
    other_date.headers.insert("x-amz-date", http::HeaderValue::from_static("2023-11-14"));
    assert_eq!(verified(&other_date, BODY, NOW_MS), Err("IncompleteSignature"));
}
