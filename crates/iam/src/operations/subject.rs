//! The subject of an operation, as policies name it.

use std::collections::BTreeMap;

use super::call::Context;
use super::call::HolderKind;
use super::holders;
use super::parameters::Parameters;
use crate::arn::oidc_provider_arn;
use crate::caller_identity::CallerKind;

/// The subject of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Its ARN.
    pub arn: String,
    /// Its tags, for `aws:ResourceTag/...` and `iam:ResourceTag/...`.
    pub tags: BTreeMap<String, String>,
    /// The ARN that it has afterwards, if the operation gives it another one.
    pub renamed_arn: Option<String>,
    /// The managed policy that is attached or detached, for `iam:PolicyARN`.
    pub policy_arn: Option<String>,
}

/// Parameters that name the subject of an operation.
#[derive(Clone, Copy)]
pub(crate) enum About {
    /// Everything.
    All,
    /// One that exists.
    One(HolderKind),
    /// One that exists, and a managed policy for it.
    Attachment(HolderKind),
    /// One that exists, and gets another name or path.
    Renamed(HolderKind),
    /// One that is to be made: its path is a parameter, too.
    New(HolderKind),
    /// All of a kind below a path.
    Listing(HolderKind),
    /// The user that is named, or the caller's.
    OwnUser,
    /// The user whose key is named.
    KeyOwner,
    /// A managed policy, by its ARN.
    PolicyArn,
    /// An issuer, by its URL.
    NewProvider,
    /// An issuer, by its ARN.
    ProviderArn,
}

impl About {
    pub(crate) fn subject(self, context: &Context<'_>, parameters: &Parameters) -> Subject {
        let text = |name: &str| parameters.get(name).unwrap_or_default();
        match self {
            About::All => Subject { arn: "*".into(), ..Subject::default() },
            About::One(kind) => one(context, kind, text(kind.parameter())),
            About::Attachment(kind) => {
                let policy_arn = parameters.get("PolicyArn").map(str::to_owned);
                Subject { policy_arn, ..one(context, kind, text(kind.parameter())) }
            }
            About::Renamed(kind) => renamed(context, kind, parameters),
            About::New(kind) => {
                let path = parameters.get("Path").filter(|path| !path.is_empty()).unwrap_or("/");
                named(context, kind, path, text(kind.parameter()))
            }
            About::Listing(kind) => {
                let prefix = parameters.get("PathPrefix").filter(|prefix| !prefix.is_empty()).unwrap_or("/");
                named(context, kind, prefix, "")
            }
            About::OwnUser => own_user(context, parameters),
            About::KeyOwner => {
                let key = context.identities.access_key(text("AccessKeyId"));
                let owner = key.and_then(|key| key.record.user.clone()).unwrap_or_default();
                one(context, HolderKind::User, &owner)
            }
            About::PolicyArn => {
                let arn = text("PolicyArn");
                let policy = context.identities.policy_by_arn(context.account_id(), arn);
                let tags = policy.map(|policy| policy.record.tags.clone()).unwrap_or_default();
                Subject { arn: arn.into(), tags, ..Subject::default() }
            }
            About::NewProvider => {
                Subject { arn: oidc_provider_arn(context.account_id(), text("Url")), ..Subject::default() }
            }
            About::ProviderArn => Subject { arn: text("OpenIDConnectProviderArn").into(), ..Subject::default() },
        }
    }
}

/// A caller that may change one may not thereby rename it to another outside of its rights.
fn renamed(context: &Context<'_>, kind: HolderKind, parameters: &Parameters) -> Subject {
    let old_name = parameters.get(kind.parameter()).unwrap_or_default();
    let subject = one(context, kind, old_name);
    let found = holders::find(context.identities, context.account_id(), kind, old_name);
    let (path, name) = found.as_ref().map_or(("/", old_name), |record| {
        let (_, path, name, _) = holders::identity_of(record);
        (path, name)
    });
    let new = |parameter: &str| parameters.get(parameter).filter(|text| !text.is_empty());
    let path = new("NewPath").unwrap_or(path);
    let name = new(&format!("New{}", kind.parameter())).unwrap_or(name);
    let renamed_arn = Some(holders::arn(context, kind, path, name)).filter(|arn| *arn != subject.arn);
    Subject { renamed_arn, ..subject }
}

fn own_user(context: &Context<'_>, parameters: &Parameters) -> Subject {
    let caller = context.caller.map(|caller| &caller.kind);
    match (parameters.get("UserName").filter(|name| !name.is_empty()), caller) {
        (Some(name), _) => one(context, HolderKind::User, name),
        (None, Some(CallerKind::User { name, .. })) => one(context, HolderKind::User, name),
        (None, _) => Subject { arn: format!("arn:aws:iam::{}:root", context.account_id()), ..Subject::default() },
    }
}

fn named(context: &Context<'_>, kind: HolderKind, path: &str, name: &str) -> Subject {
    Subject { arn: holders::arn(context, kind, path, name), ..Subject::default() }
}

fn one(context: &Context<'_>, kind: HolderKind, name: &str) -> Subject {
    match holders::find(context.identities, context.account_id(), kind, name) {
        Some(record) => {
            let (kind, path, name, tags) = holders::identity_of(&record);
            Subject { tags, ..named(context, kind, path, name) }
        }
        None => named(context, kind, "/", name),
    }
}
