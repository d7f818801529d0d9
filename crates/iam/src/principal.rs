//! Principals: whom a statement of a bucket or role is about.

use std::collections::BTreeMap;

use crate::caller_identity::{CallerIdentity, CallerKind, TrustPrincipal};
use crate::fault::Fault;
use crate::json::Json;

/// One name of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Principal {
    Everyone,
    Account(String),
    /// With the path, such as `/team/anna`, and its id if it is known.
    User {
        account: String,
        path_and_name: String,
        id: Option<String>,
    },
    /// With the path.
    Role {
        account: String,
        path_and_name: String,
        id: Option<String>,
    },
    /// The id is that of the role.
    Session {
        account: String,
        role: String,
        session_name: String,
        id: Option<String>,
    },
    /// An account by its canonical id.
    CanonicalUser(String),
    Federated(String),
    /// A service of AWS; none exists here.
    Service,
}

/// Principals of a statement.
#[derive(Clone, Debug)]
pub(crate) struct Principals {
    names: Vec<Principal>,
    /// `NotPrincipal`: all others.
    is_negated: bool,
}

/// How closely a statement names a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Closeness {
    /// Only by its account, which may pass its rights on.
    Account,
    /// By itself, by its role, or among all.
    Identity,
    /// By the ARN of the session.
    Session,
}

impl Principals {
    /// Returns true if they are all but the named ones.
    pub(crate) fn is_negated(&self) -> bool {
        self.is_negated
    }

    pub(crate) fn parse(element: &Json, is_negated: bool) -> Result<Principals, Fault> {
        let mut names = Vec::new();
        match element {
            Json::Text(text) if text == "*" => names.push(Principal::Everyone),
            Json::Object(kinds) if !kinds.is_empty() => {
                for (kind, value) in kinds {
                    parse_kind(kind, value, &mut names)?;
                }
            }
            _ => {
                return Err(Fault::new(
                    "the principal is neither \"*\" nor an object of principals",
                    "Write \"*\", or an object such as {\"AWS\": \"arn:aws:iam::111122223333:user/anna\"}",
                ));
            }
        }
        Ok(Principals { names, is_negated })
    }

    /// Returns true if an Allow for these is one for all users.
    pub(crate) fn is_everybody(&self) -> bool {
        self.is_negated || self.names.contains(&Principal::Everyone)
    }

    /// The ARNs of users, roles and sessions of roles that it names.
    pub(crate) fn arns(&self) -> impl Iterator<Item = String> {
        self.names.iter().filter_map(Principal::arn)
    }

    /// Has these count by their ids from now on.
    pub(crate) fn bind(&mut self, ids: &BTreeMap<String, String>) {
        for name in &mut self.names {
            let found = name.arn().and_then(|arn| ids.get(&arn).cloned());
            if let Principal::User { id, .. } | Principal::Role { id, .. } | Principal::Session { id, .. } = name {
                *id = found;
            }
        }
    }

    /// How closely an Allow names the principal; `None` if it does not.
    pub(crate) fn allowed(&self, principal: Option<TrustPrincipal<'_>>) -> Option<Closeness> {
        // Who has the name of one that is left out is left out, too.
        let of = |name: &Principal| match self.is_negated {
            true => name.closeness_of_either(principal),
            false => name.closeness(principal),
        };
        let closest = self.names.iter().filter_map(of).max();
        if !self.is_negated {
            return closest;
        }
        // Who shows a token is never let in without being named.
        let is_federated = matches!(principal, Some(TrustPrincipal::Federated { .. }));
        (closest.is_none() && !is_federated).then_some(Closeness::Identity)
    }

    /// Returns true if a Deny applies to the principal. As with AWS, `NotPrincipal` spares a user or session only
    /// if it names its account as well.
    pub(crate) fn are_denied(&self, principal: Option<TrustPrincipal<'_>>) -> bool {
        if let Some(TrustPrincipal::Federated { .. }) = principal {
            let is_named =
                self.names.iter().any(|name| *name == Principal::Everyone || name.closeness(principal).is_some());
            return is_named != self.is_negated;
        }
        if !self.is_negated {
            return self.names.iter().any(|name| name.closeness_of_either(principal).is_some());
        }
        let closenesses = self.names.iter().filter_map(|name| name.closeness(principal));
        if self.names.contains(&Principal::Everyone) {
            return false;
        }
        let is_account_itself =
            matches!(principal, Some(TrustPrincipal::Caller(CallerIdentity { kind: CallerKind::Root, .. })));
        let (mut is_account_named, mut is_self_named) = (false, is_account_itself);
        for closeness in closenesses {
            match closeness {
                Closeness::Account => is_account_named = true,
                Closeness::Identity | Closeness::Session => is_self_named = true,
            }
        }
        !(is_account_named && is_self_named)
    }
}

/// Returns true if a known id is the caller's, or else if the name is.
fn is_same(id: Option<&String>, own_id: &str, has_name: bool) -> bool {
    id.map_or(has_name, |id| id == own_id)
}

impl Principal {
    fn arn(&self) -> Option<String> {
        match self {
            Principal::User { account, path_and_name, .. } => {
                Some(format!("arn:aws:iam::{account}:user{path_and_name}"))
            }
            Principal::Role { account, path_and_name, .. } => {
                Some(format!("arn:aws:iam::{account}:role{path_and_name}"))
            }
            Principal::Session { account, role, session_name, .. } => {
                Some(format!("arn:aws:sts::{account}:assumed-role/{role}/{session_name}"))
            }
            _ => None,
        }
    }

    /// The same by its name, whatever its id.
    fn without_id(&self) -> Principal {
        let mut name = self.clone();
        if let Principal::User { id, .. } | Principal::Role { id, .. } | Principal::Session { id, .. } = &mut name
        {
            *id = None;
        }
        name
    }

    /// A Deny is about who has the id as well as about who has the name.
    fn closeness_of_either(&self, principal: Option<TrustPrincipal<'_>>) -> Option<Closeness> {
        self.closeness(principal).or_else(|| self.without_id().closeness(principal))
    }

    /// By the id, if it is known.
    fn closeness(&self, principal: Option<TrustPrincipal<'_>>) -> Option<Closeness> {
        let caller = match principal {
            Some(TrustPrincipal::Caller(caller)) => caller,
            Some(TrustPrincipal::Federated { provider_arn }) => {
                let is_named = matches!(self, Principal::Federated(name) if name == provider_arn);
                return is_named.then_some(Closeness::Identity);
            }
            None => return (*self == Principal::Everyone).then_some(Closeness::Identity),
        };
        let of = |account: &String| *account == caller.account.id;
        let (is_named, closeness) = match (self, &caller.kind) {
            (Principal::Everyone, _) => (true, Closeness::Identity),
            (Principal::Account(account), _) => (of(account), Closeness::Account),
            (Principal::CanonicalUser(id), _) => (*id == caller.account.canonical_id, Closeness::Account),
            (Principal::User { account, path_and_name, id }, CallerKind::User { name, path, id: own_id }) => {
                let has_name = is_joined(path_and_name, path, name);
                (of(account) && is_same(id.as_ref(), own_id, has_name), Closeness::Identity)
            }
            (Principal::Role { account, path_and_name, id }, CallerKind::Session { role, path, role_id, .. }) => {
                let has_name = is_joined(path_and_name, path, role);
                (of(account) && is_same(id.as_ref(), role_id, has_name), Closeness::Identity)
            }
            (
                Principal::Session { account, role, session_name, id },
                CallerKind::Session { role: own_role, session_name: own_session_name, role_id, .. },
            ) => {
                let is_role = is_same(id.as_ref(), role_id, role == own_role);
                (of(account) && is_role && session_name == own_session_name, Closeness::Session)
            }
            _ => (false, Closeness::Identity),
        };
        is_named.then_some(closeness)
    }
}

fn is_joined(joined: &str, path: &str, name: &str) -> bool {
    joined.strip_prefix(path) == Some(name)
}

fn parse_kind(kind: &str, value: &Json, names: &mut Vec<Principal>) -> Result<(), Fault> {
    let texts = match value {
        Json::List(list) if !list.is_empty() => list.as_slice(),
        Json::List(_) => {
            return Err(Fault::new(format!("the list of {kind} principals is empty"), "Name a principal"));
        }
        one => std::slice::from_ref(one),
    };
    for text in texts {
        let Json::Text(text) = text else {
            return Err(Fault::new(
                format!("a principal of the kind {kind} is {}", text.kind()),
                "Give a string or a list of strings",
            ));
        };
        names.push(parse_name(kind, text)?);
    }
    Ok(())
}

fn parse_name(kind: &str, text: &str) -> Result<Principal, Fault> {
    let is_plain = !text.is_empty() && !text.contains(['*', '?']) && !text.chars().any(char::is_control);
    let name = match kind {
        "AWS" => parse_aws(text),
        "CanonicalUser" if is_plain => Some(Principal::CanonicalUser(text.to_owned())),
        "Federated" if is_plain => Some(Principal::Federated(text.to_owned())),
        "Service" if is_plain => Some(Principal::Service),
        "CanonicalUser" | "Federated" | "Service" => None,
        _ => {
            return Err(Fault::new(
                format!("there is no kind of principal \"{kind}\""),
                "Use AWS, CanonicalUser, Federated or Service",
            ));
        }
    };
    name.ok_or_else(|| {
        Fault::new(
            format!("\"{text}\" is no principal of the kind {kind}"),
            "Name an account, user, role or session by its ARN, without wildcards",
        )
    })
}

fn parse_aws(text: &str) -> Option<Principal> {
    if text == "*" {
        return Some(Principal::Everyone);
    }
    let Some(arn) = text.strip_prefix("arn:aws:") else {
        return is_account(text).then(|| Principal::Account(text.to_owned()));
    };
    let (service, account_and_entity) = arn.split_once("::")?;
    let (account, entity) = account_and_entity.split_once(':')?;
    if !is_account(account) {
        return None;
    }
    let account = account.to_owned();
    let (kind, rest) = match entity.find('/') {
        Some(slash) => entity.split_at(slash),
        None => (entity, ""),
    };
    match (service, kind) {
        ("iam", "root") if rest.is_empty() => Some(Principal::Account(account)),
        ("iam", "user") if is_path_and_name(rest) => {
            Some(Principal::User { account, path_and_name: rest.to_owned(), id: None })
        }
        ("iam", "role") if is_path_and_name(rest) => {
            Some(Principal::Role { account, path_and_name: rest.to_owned(), id: None })
        }
        ("sts", "assumed-role") if is_path_and_name(rest) => {
            let (role, session_name) = rest[1..].split_once('/')?;
            let is_one_part = !role.is_empty() && !session_name.contains('/');
            is_one_part.then(|| Principal::Session {
                account,
                role: role.to_owned(),
                session_name: session_name.to_owned(),
                id: None,
            })
        }
        _ => None,
    }
}

fn is_account(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Begins with a slash and ends with a name.
fn is_path_and_name(text: &str) -> bool {
    text.len() > 1
        && !text.ends_with('/')
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'*' | b'?'))
}
