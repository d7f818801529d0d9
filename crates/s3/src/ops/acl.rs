//! Access control lists of buckets and objects: from canned names, `x-amz-grant-` headers and XML to
//! records, and back. Whom a list lets in is decided by the policy engine.

use atoll_iam::acl;
use atoll_types::access::{Acl, AclGrant, AclGrantee, AclPermission, ObjectOwnership};
use atoll_types::limits::ACL_GRANTS_MAX;
use atoll_types::records::BucketRecord;
use http::{HeaderMap, StatusCode};
use s3s::dto::{
    AccessControlPolicy, GetBucketAclInput, GetBucketAclOutput, GetObjectAclInput, GetObjectAclOutput, Grant,
    Grantee, Permission, PutBucketAclInput, PutBucketAclOutput, PutObjectAclInput, PutObjectAclOutput, Type,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::entries::version_answer;
use crate::access::{Asked, Asking, GRANT_TO_OTHERS, access_denied};
use crate::bucket::Bucket;
use crate::error::custom_error;
use crate::record::EntryHead;

const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const AUTHENTICATED_USERS: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

const GRANT_HEADERS: [(&str, AclPermission); 5] = [
    ("x-amz-grant-read", AclPermission::Read),
    ("x-amz-grant-write", AclPermission::Write),
    ("x-amz-grant-read-acp", AclPermission::ReadAcp),
    ("x-amz-grant-write-acp", AclPermission::WriteAcp),
    ("x-amz-grant-full-control", AclPermission::FullControl),
];

/// The ACL that a request's headers ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WantedAcl {
    /// None: that of the owner alone.
    Default,
    /// By one of S3's names.
    Canned(String),
    /// By grants.
    Grants(Acl),
}

/// Owner of a new object, and its ACL if it has one of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NewAccess {
    /// `None` for the owner of the bucket.
    pub owner: Option<String>,
    pub acl: Option<Acl>,
}

pub(super) fn acl_not_supported() -> S3Error {
    custom_error(
        "AccessControlListNotSupported",
        StatusCode::BAD_REQUEST,
        "The bucket does not allow ACLs: everything in it belongs to the owner of the bucket",
    )
}

fn malformed_acl() -> S3Error {
    s3_error!(
        MalformedACLError,
        "The XML you provided was not well-formed or did not validate against our published schema"
    )
}

fn permission_name(permission: AclPermission) -> &'static str {
    match permission {
        AclPermission::FullControl => Permission::FULL_CONTROL,
        AclPermission::Read => Permission::READ,
        AclPermission::Write => Permission::WRITE,
        AclPermission::ReadAcp => Permission::READ_ACP,
        AclPermission::WriteAcp => Permission::WRITE_ACP,
    }
}

fn parse_permission(name: &str) -> Option<AclPermission> {
    GRANT_HEADERS.iter().map(|(_, permission)| *permission).find(|one| permission_name(*one) == name)
}

/// The grantees of a header: `id="A", emailAddress="b@c", uri="U"`, with or without quotes.
fn header_grantees(value: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    value.split(',').map(|item| {
        let (kind, name) = item.trim().split_once('=')?;
        Some((kind.trim(), name.trim().trim_matches('"')))
    })
}

impl Service {
    fn grantee_by_id(&self, id: &str) -> S3Result<AclGrantee> {
        match self.directory.identities().account_by_canonical_id(id) {
            Some(_) => Ok(AclGrantee::Account(id.to_owned())),
            None => Err(s3_error!(InvalidArgument, "Invalid id: no account has the canonical id '{id}'")),
        }
    }

    fn grantee_by_email(&self, email: &str) -> S3Result<AclGrantee> {
        match self.directory.identities().account_by_email(email) {
            Some(account) => Ok(AclGrantee::Account(account.canonical_id.clone())),
            None => Err(s3_error!(
                UnresolvableGrantByEmailAddress,
                "The email address you provided does not match any account on record"
            )),
        }
    }

    fn grantee_by_uri(uri: &str) -> S3Result<AclGrantee> {
        match uri {
            ALL_USERS => Ok(AclGrantee::AllUsers),
            AUTHENTICATED_USERS => Ok(AclGrantee::AuthenticatedUsers),
            _ => Err(s3_error!(InvalidArgument, "Invalid group uri: '{uri}'")),
        }
    }

    /// The ACL that the headers of a request ask for.
    pub(super) fn wanted_acl(&self, headers: &HeaderMap) -> S3Result<WantedAcl> {
        let invalid = |name: &str| s3_error!(InvalidArgument, "The value of {name} is malformed");
        let mut grants = Vec::new();
        for (name, permission) in GRANT_HEADERS {
            for value in headers.get_all(name) {
                for grantee in header_grantees(value.to_str().map_err(|_| invalid(name))?) {
                    let (kind, value) = grantee.ok_or_else(|| invalid(name))?;
                    let grantee = match &*kind.to_ascii_lowercase() {
                        "id" => self.grantee_by_id(value)?,
                        "emailaddress" => self.grantee_by_email(value)?,
                        "uri" => Self::grantee_by_uri(value)?,
                        _ => return Err(invalid(name)),
                    };
                    grants.push(AclGrant { grantee, permission });
                }
            }
        }
        let canned = headers.get("x-amz-acl").map(|value| value.to_str().unwrap_or("?").to_owned());
        match (canned, grants.is_empty()) {
            (None, true) => Ok(WantedAcl::Default),
            (Some(name), true) => Ok(WantedAcl::Canned(name)),
            (None, false) => checked(Acl { grants }).map(WantedAcl::Grants),
            (Some(_), false) => {
                Err(s3_error!(InvalidRequest, "Specifying both Canned ACLs and Header Grants is not allowed"))
            }
        }
    }

    /// The same for something of a bucket, in which ACLs may not count.
    fn acl_for(&self, bucket: &Bucket, headers: &HeaderMap) -> S3Result<WantedAcl> {
        let has_grants = GRANT_HEADERS.iter().any(|(name, _)| headers.contains_key(*name));
        if has_grants && !bucket.counts_acls() { Err(acl_not_supported()) } else { self.wanted_acl(headers) }
    }

    fn acl_of_xml(&self, policy: AccessControlPolicy, owner: &str) -> S3Result<Acl> {
        let named_owner = policy.owner.and_then(|owner| owner.id);
        if named_owner.is_some_and(|named| named != owner) {
            return Err(access_denied());
        }
        let grant = |grant: Grant| {
            let permission = grant.permission.as_ref().and_then(|name| parse_permission(name.as_str()));
            let grantee = grant.grantee.ok_or_else(malformed_acl)?;
            let grantee = match (grantee.id, grantee.email_address, grantee.uri) {
                (Some(id), None, None) => self.grantee_by_id(&id)?,
                (None, Some(email), None) => self.grantee_by_email(&email)?,
                (None, None, Some(uri)) => Self::grantee_by_uri(&uri)?,
                _ => return Err(malformed_acl()),
            };
            Ok(AclGrant { grantee, permission: permission.ok_or_else(malformed_acl)? })
        };
        let grants = policy.grants.unwrap_or_default().into_iter().map(grant).collect::<S3Result<_>>()?;
        checked(Acl { grants })
    }

    /// The ACL that a PutBucketAcl or PutObjectAcl asks for; `None` for that of the owner alone.
    fn asked_acl(
        &self,
        headers: &HeaderMap,
        xml: Option<AccessControlPolicy>,
        bucket: &Bucket,
        owner: &str,
        asking: &Asking<'_>,
    ) -> S3Result<Option<Acl>> {
        let wanted = match (self.acl_for(bucket, headers)?, xml) {
            (WantedAcl::Default, Some(policy)) => WantedAcl::Grants(self.acl_of_xml(policy, owner)?),
            (WantedAcl::Default, None) => {
                return Err(s3_error!(MissingSecurityHeader, "Your request is missing a required header"));
            }
            (_, Some(_)) => return Err(s3_error!(UnexpectedContent, "This request does not support content")),
            (wanted, None) => wanted,
        };
        resolve(bucket, owner, asking.permit.canonical_id(), wanted)
    }

    /// Returns the owner of a written object, and its ACL, by the headers of the request and the ownership of the
    /// bucket.
    pub(super) fn new_access(
        &self,
        asking: &Asking<'_>,
        headers: &HeaderMap,
        bucket: &Bucket,
        key: &str,
    ) -> S3Result<NewAccess> {
        let wanted = self.acl_for(bucket, headers)?;
        let writer = asking.permit.canonical_id();
        let bucket_owner = &bucket.record.owner;
        let gives_away = matches!(&wanted, WantedAcl::Canned(name) if name == "bucket-owner-full-control");
        let owner = match bucket.ownership() {
            ObjectOwnership::BucketOwnerEnforced => bucket_owner,
            ObjectOwnership::BucketOwnerPreferred if gives_away => bucket_owner,
            // Nobody could ever use the rights of who did not sign.
            _ if asking.caller().is_none() => bucket_owner,
            ObjectOwnership::BucketOwnerPreferred | ObjectOwnership::ObjectWriter => writer,
        };
        let acl = resolve(bucket, owner, writer, wanted)?;
        if acl.as_ref().is_some_and(|acl| gives_to_others(acl, [owner, bucket_owner])) {
            asking.check(GRANT_TO_OTHERS, &Asked::key(bucket, key, None))?;
        }
        Ok(NewAccess { owner: (owner != bucket_owner).then(|| owner.to_owned()), acl })
    }

    /// A grant as S3 shows it.
    fn told(&self, grant: &AclGrant) -> Grant {
        let group = |uri: &str| Grantee {
            display_name: None,
            email_address: None,
            id: None,
            type_: Type::from_static(Type::GROUP),
            uri: Some(uri.to_owned()),
        };
        let grantee = match &grant.grantee {
            AclGrantee::AllUsers => group(ALL_USERS),
            AclGrantee::AuthenticatedUsers => group(AUTHENTICATED_USERS),
            AclGrantee::Account(id) => Grantee {
                display_name: self.owner(id).display_name,
                email_address: None,
                id: Some(id.clone()),
                type_: Type::from_static(Type::CANONICAL_USER),
                uri: None,
            },
        };
        let permission = Permission::from_static(permission_name(grant.permission));
        Grant { grantee: Some(grantee), permission: Some(permission) }
    }

    /// Groups come first, as with RGW; to S3's clients the order means nothing.
    fn told_acl(&self, acl: Option<&Acl>, owner: &str) -> Vec<Grant> {
        let Some(acl) = acl else { return vec![self.told(&full_control(owner))] };
        let mut grants: Vec<&AclGrant> = acl.grants.iter().collect();
        grants.sort_by_key(|grant| matches!(grant.grantee, AclGrantee::Account(_)));
        grants.into_iter().map(|grant| self.told(grant)).collect()
    }

    pub(super) async fn get_bucket_acl(
        &self,
        request: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let owner = &bucket.record.owner;
        let acl = bucket.record.access.as_ref().filter(|_| bucket.counts_acls());
        let grants = self.told_acl(acl.and_then(|access| access.acl.as_ref()), owner);
        Ok(S3Response::new(GetBucketAclOutput { grants: Some(grants), owner: Some(self.owner(owner)) }))
    }

    pub(super) async fn put_bucket_acl(
        &self,
        request: S3Request<PutBucketAclInput>,
    ) -> S3Result<S3Response<PutBucketAclOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        // Ownership and public access are those of the record that is changed, not of one in the cache.
        let set = |record: &mut BucketRecord| -> S3Result<()> {
            let bucket = Bucket::new(record.clone(), &self.directory.identities());
            let policy = input.access_control_policy.clone();
            let acl = self.asked_acl(&request.headers, policy, &bucket, &bucket.record.owner, &asking)?;
            if let Some(access) = record.access.as_mut().filter(|_| bucket.counts_acls()) {
                access.acl = acl;
            }
            Ok(())
        };
        self.buckets.try_change(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketAclOutput::default()))
    }

    pub(super) async fn get_object_acl(
        &self,
        request: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let head = self.object_for(&asking, &index, &input.key, input.version_id.as_deref()).await?.head;
        let (owner, acl) = match index.bucket.counts_acls() {
            true => (head.owner.as_ref().unwrap_or(&index.bucket.record.owner), head.acl.as_ref()),
            false => (&index.bucket.record.owner, None),
        };
        let mut response = S3Response::new(GetObjectAclOutput {
            grants: Some(self.told_acl(acl, owner)),
            owner: Some(self.owner(owner)),
            ..Default::default()
        });
        if let Some(id) = version_answer(&index, &head).and_then(|id| http::HeaderValue::try_from(id).ok()) {
            response.headers.insert(s3s::header::X_AMZ_VERSION_ID, id);
        }
        Ok(response)
    }

    pub(super) async fn put_object_acl(
        &self,
        request: S3Request<PutObjectAclInput>,
    ) -> S3Result<S3Response<PutObjectAclOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let bucket = &index.bucket;
        let version_id = input.version_id.as_deref();
        let set = |head: &mut EntryHead| {
            let owner = head.owner.as_ref().unwrap_or(&bucket.record.owner);
            let policy = input.access_control_policy.clone();
            let acl = self.asked_acl(&request.headers, policy, bucket, owner, &asking)?;
            if bucket.counts_acls() {
                head.acl = acl;
            }
            Ok(())
        };
        self.change_head(&asking, &index, &input.key, version_id, set).await?;
        Ok(S3Response::new(PutObjectAclOutput::default()))
    }
}

fn full_control(owner: &str) -> AclGrant {
    AclGrant { grantee: AclGrantee::Account(owner.to_owned()), permission: AclPermission::FullControl }
}

fn checked(acl: Acl) -> S3Result<Acl> {
    if acl.grants.len() > ACL_GRANTS_MAX {
        return Err(s3_error!(InvalidArgument, "An ACL may have {ACL_GRANTS_MAX} grants"));
    }
    Ok(acl)
}

/// Returns true if an ACL gives rights to any other than these.
fn gives_to_others(acl: &Acl, own: [&str; 2]) -> bool {
    let is_own = |grant: &AclGrant| matches!(&grant.grantee, AclGrantee::Account(id) if own.contains(&&**id));
    !acl.grants.iter().all(is_own)
}

/// Returns the ACL for a resource of `owner`; `None` for that of the owner alone.
pub(super) fn resolve_acl(bucket_owner: &str, owner: &str, wanted: WantedAcl) -> S3Result<Option<Acl>> {
    let acl = match wanted {
        WantedAcl::Default => None,
        WantedAcl::Grants(acl) => Some(acl),
        WantedAcl::Canned(name) => Some(
            acl::canned(&name, bucket_owner, owner)
                .ok_or_else(|| s3_error!(InvalidArgument, "'{name}' is no canned ACL that this gateway knows"))?,
        ),
    };
    Ok(acl.filter(|acl| acl.grants != [full_control(owner)]))
}

/// The ACL that a bucket lets something of `owner` have, whose request is of `writer`; `None` for that
/// of the owner alone.
fn resolve(bucket: &Bucket, owner: &str, writer: &str, wanted: WantedAcl) -> S3Result<Option<Acl>> {
    let bucket_owner = &bucket.record.owner;
    let is_private = matches!(&wanted, WantedAcl::Canned(name) if name == "private");
    let acl = resolve_acl(bucket_owner, owner, wanted)?;
    match &acl {
        // What a stranger writes cannot be private to the stranger.
        None if is_private && !bucket.counts_acls() && writer != bucket_owner => Err(acl_not_supported()),
        None => Ok(None),
        Some(_) if !bucket.counts_acls() => Err(acl_not_supported()),
        Some(found) => {
            let block = bucket.record.public_access_block.unwrap_or_default();
            if block.block_public_acls && acl::is_public(found) {
                return Err(access_denied());
            }
            Ok(acl)
        }
    }
}
