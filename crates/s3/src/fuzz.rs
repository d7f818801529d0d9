//! Fuzzing in small: inputs that clients send to parsers, changed in ways that parsers find hard.
//! `ATOLL_FUZZ_RUNS` sets how many of each kind, `ATOLL_FUZZ_SEED` the first of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use atoll_iam::{
    Account, Caller, CallerIdentity, CallerKind, ConditionValues, Policy, PolicyKind, Question, ResourceSide,
    TrustPrincipal, decide, trusts,
};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;
use s3s::dto::{
    AccessControlPolicy, CORSConfiguration, CompletedMultipartUpload, CreateBucketConfiguration, Delete,
    ObjectLockConfiguration, ObjectLockLegalHold, ObjectLockRetention, OwnershipControls,
    PublicAccessBlockConfiguration, ServerSideEncryptionConfiguration, Tagging, VersioningConfiguration,
};
use s3s::xml::{Deserialize, Deserializer};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// How much is tried.
pub(crate) fn config() -> ProptestConfig {
    let runs = setting("ATOLL_FUZZ_RUNS", 20_000);
    ProptestConfig {
        cases: u32::try_from(runs).unwrap_or(u32::MAX),
        rng_seed: RngSeed::Fixed(setting("ATOLL_FUZZ_SEED", 1)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(u8),
    Truncate,
    Remove(usize),
    Insert(&'static str),
    /// Copies bytes to another place, a number of times.
    Copy(Index, usize, usize),
}

fn mutation(words: &'static [&'static str]) -> impl Strategy<Value = Mutation> {
    prop_oneof![
        any::<u8>().prop_map(Mutation::Set),
        Just(Mutation::Truncate),
        (1usize..40).prop_map(Mutation::Remove),
        prop::sample::select(words).prop_map(Mutation::Insert),
        (any::<Index>(), 1usize..80, 1usize..20)
            .prop_map(|(from, bytes, times)| Mutation::Copy(from, bytes, times)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, at: Index, mutation: &Mutation) {
    let at = at.index(bytes.len() + 1);
    match mutation {
        Mutation::Set(byte) => bytes.get_mut(at).into_iter().for_each(|found| *found = *byte),
        Mutation::Truncate => bytes.truncate(at),
        Mutation::Remove(count) => drop(bytes.drain(at..(at + count).min(bytes.len()))),
        Mutation::Insert(word) => drop(bytes.splice(at..at, word.bytes())),
        Mutation::Copy(from, count, times) => {
            let from = from.index(bytes.len() + 1);
            let copied = bytes[from..(from + count).min(bytes.len())].repeat(*times);
            drop(bytes.splice(at..at, copied));
        }
    }
}

/// Arbitrary bytes, and now and then one of these samples, changed in a few places, also by these words.
pub(crate) fn mutated(samples: Vec<Vec<u8>>, words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let mutations = prop::collection::vec((any::<Index>(), mutation(words)), 0..5);
    let changed = (prop::sample::select(samples), mutations).prop_map(|(mut bytes, mutations)| {
        mutations.iter().for_each(|(at, mutation)| mutate(&mut bytes, *at, mutation));
        bytes
    });
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..200), 9 => changed]
}

fn texts(samples: &[&str]) -> Vec<Vec<u8>> {
    samples.iter().map(|sample| sample.as_bytes().to_vec()).collect()
}

const POLICIES: [&str; 5] = [
    r#"{"Version":"2012-10-17","Id":"x","Statement":[{"Sid":"First","Effect":"Allow","Action":["s3:Get*","s3:P?t*"],"Resource":"arn:aws:s3:::b/*"}]}"#,
    r#"{"Statement":{"Effect":"Deny","NotAction":"s3:*","NotResource":["arn:aws:s3:::b","*"],"Condition":{"Bool":{"aws:SecureTransport":"false"},"NumericLessThan":{"s3:max-keys":["10","1e3"]}}}}"#,
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["arn:aws:iam::123456789012:user/a","*"]},"Action":"s3:GetObject","Resource":"arn:aws:s3:::b/${aws:username}/*","Condition":{"IpAddressIfExists":{"aws:SourceIp":["10.0.0.0/8","::1/128"]},"DateGreaterThan":{"aws:CurrentTime":"2026-11-24T08:09:10Z"}}}]}"#,
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"*","Condition":{"ForAllValues:StringNotLike":{"s3:prefix":["a/*","${*}"]},"Null":{"s3:prefix":true},"ArnLike":{"aws:PrincipalArn":"arn:aws:iam::*:role/*"},"BinaryEquals":{"aws:x":"AAAA"}}}]}"#,
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Federated":"arn:aws:iam::123456789012:oidc-provider/example.com"},"Action":["sts:AssumeRoleWithWebIdentity","sts:AssumeRole"],"Condition":{"StringEquals":{"example.com:sub":"a"}}}]}"#,
];
const POLICY_WORDS: &[&str] = &[
    "\"",
    "{",
    "[",
    "}",
    "]",
    ":",
    ",",
    "*",
    "?",
    "${",
    "${aws:username, 'a'}",
    "$",
    "null",
    "-1",
    "\\u0000",
    "ü",
];

/// A request whose keys all have these values.
struct Everything;

impl ConditionValues for Everything {
    fn values(&self, key: &str) -> Vec<Cow<'_, str>> {
        ["10.1.2.3", "2026-11-24T08:09:10Z", "a", "1", "true", ""]
            .map(Cow::Borrowed)
            .into_iter()
            .take(key.len() % 7)
            .collect()
    }
}

fn ask(policy: Policy, kind: PolicyKind) {
    let account = Account { id: "123456789012".to_owned(), canonical_id: "c".to_owned(), name: "name".to_owned() };
    let user = CallerKind::User { name: "a".to_owned(), path: "/".to_owned(), id: "AIDA".to_owned() };
    let policy = Arc::new(policy);
    let held = |is_held: bool| is_held.then(|| ("held".to_owned(), policy.clone())).into_iter().collect();
    let caller = Caller {
        identity: CallerIdentity {
            account: Arc::new(account),
            kind: user,
            session_issued_unix_ms: None,
            tags: BTreeMap::new(),
        },
        access_key: "AKIA".to_owned(),
        policies: held(kind == PolicyKind::Identity),
        session_policies: held(kind == PolicyKind::Session),
        key_policy: None,
    };
    if kind == PolicyKind::Trust {
        trusts(&policy, TrustPrincipal::Caller(&caller), "sts:AssumeRole", &Everything);
        let provider_arn = "arn:aws:iam::123456789012:oidc-provider/example.com";
        let principal = TrustPrincipal::Federated { provider_arn };
        trusts(&policy, principal, "sts:AssumeRoleWithWebIdentity", &Everything);
        return;
    }
    let side = ResourceSide {
        bucket_owner: "c",
        object_owner: None,
        policy: (kind == PolicyKind::Resource).then_some(&*policy),
        acl: None,
        public_access_block: Default::default(),
    };
    for caller in [Some(&caller), None] {
        decide(&Question {
            caller,
            action: "s3:GetObject",
            resource: "arn:aws:s3:::b/a/key",
            resource_side: Some(side),
            conditions: &Everything,
        });
    }
}

/// Bodies of requests.
const DOCUMENTS: [&str; 13] = [
    "<Delete><Quiet>true</Quiet><Object><Key>a&amp;b</Key><VersionId>null</VersionId></Object><Object><Key>c</Key></Object></Delete>",
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Tagging xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
    "<AccessControlPolicy><Owner><ID>o</ID></Owner><AccessControlList><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>g</ID></Grantee><Permission>READ</Permission></Grant></AccessControlList></AccessControlPolicy>",
    "<CORSConfiguration><CORSRule><ID>x</ID><AllowedOrigin>http://*.example.com</AllowedOrigin><AllowedMethod>PUT</AllowedMethod><AllowedHeader>*</AllowedHeader><MaxAgeSeconds>3000</MaxAgeSeconds><ExposeHeader>ETag</ExposeHeader></CORSRule></CORSConfiguration>",
    "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;e&quot;</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32></Part></CompleteMultipartUpload>",
    "<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>",
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>",
    "<LegalHold><Status>ON</Status></LegalHold>",
    "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2030-01-01T00:00:00.000Z</RetainUntilDate></Retention>",
    "<OwnershipControls><Rule><ObjectOwnership>ObjectWriter</ObjectOwnership></Rule></OwnershipControls>",
    "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls></PublicAccessBlockConfiguration>",
    "<ServerSideEncryptionConfiguration><Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>k</KMSMasterKeyID></ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>",
    "<VersioningConfiguration><Status>Enabled</Status><MfaDelete>Disabled</MfaDelete></VersioningConfiguration>",
];
const XML_WORDS: &[&str] = &[
    "<",
    ">",
    "/",
    "&",
    "&#x0;",
    "&#1114112;",
    "&e;",
    "<!-- ",
    "-->",
    "<![CDATA[",
    "]]>",
    "<?x ?>",
    "<!DOCTYPE a [",
    "<a>",
    "</a>",
    "<a/>",
    " x=\"y\"",
    "99999999999999999999",
    "-1",
    "ü",
    "\r\n",
];

/// As s3s reads the body of a request; whether it can.
fn read<T: for<'xml> Deserialize<'xml> + Debug>(bytes: &[u8]) -> bool {
    let mut deserializer = Deserializer::new(bytes);
    let value = T::deserialize(&mut deserializer);
    value.is_ok_and(|value| !format!("{value:?}").is_empty() && deserializer.expect_eof().is_ok())
}

/// Readers of the documents, in their order.
const READERS: [fn(&[u8]) -> bool; 13] = [
    read::<Delete>,
    read::<Tagging>,
    read::<AccessControlPolicy>,
    read::<CORSConfiguration>,
    read::<CompletedMultipartUpload>,
    read::<CreateBucketConfiguration>,
    read::<ObjectLockConfiguration>,
    read::<ObjectLockLegalHold>,
    read::<ObjectLockRetention>,
    read::<OwnershipControls>,
    read::<PublicAccessBlockConfiguration>,
    read::<ServerSideEncryptionConfiguration>,
    read::<VersioningConfiguration>,
];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn policies_are_parsed_or_refused(bytes in mutated(texts(&POLICIES), POLICY_WORDS)) {
        let text = String::from_utf8_lossy(&bytes);
        for kind in [PolicyKind::Identity, PolicyKind::Resource, PolicyKind::Session, PolicyKind::Trust] {
            if let Ok(policy) = Policy::parse(&text, kind) {
                ask(policy, kind);
            }
        }
    }

    #[test]
    fn documents_are_read_or_refused(bytes in mutated(texts(&DOCUMENTS), XML_WORDS)) {
        for read in READERS {
            read(&bytes);
        }
    }
}

#[test]
fn the_samples_are_good() {
    for (document, read) in DOCUMENTS.iter().zip(READERS) {
        assert!(read(document.as_bytes()), "{document}");
    }
    for policy in POLICIES {
        let kinds = [PolicyKind::Identity, PolicyKind::Resource, PolicyKind::Session, PolicyKind::Trust];
        let parsed = kinds.map(|kind| Policy::parse(policy, kind));
        assert!(parsed.iter().any(Result::is_ok), "{policy}: {parsed:?}");
    }
}
