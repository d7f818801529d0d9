//! Public policies of buckets, as AWS defines them for its public access block ("The meaning of public"): a policy
//! is public, unless each of its statements that allow something to all users is narrowed to fixed values that
//! identify callers.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::condition::Condition;
use crate::context::KeySource;
use crate::operand::{Family, Operand, Scalar, Typed};
use crate::pattern::ANY_ONE;
use crate::statement::Statement;
use crate::template::Template;

/// Keys whose fixed values identify callers. AWS has `s3:x-amz-server-side-encryption-aws-kms-key-id`, too,
/// because there a caller that names a key needs a right to it; here a stranger may name it.
const NARROWING_KEYS: [&str; 9] = [
    "aws:sourcevpc",
    "aws:sourcevpce",
    "aws:sourcearn",
    "aws:sourceowner",
    "aws:sourceaccount",
    "aws:principalorgid",
    "aws:principalarn",
    "aws:principalaccount",
    "s3:dataaccesspointaccount",
];
const ACCESS_POINT: &str = "s3:dataaccesspointarn";
const USER_ID: &str = "aws:userid";
const SOURCE_IP: &str = "aws:sourceip";
/// AWS's name of unsigned callers.
const ANONYMOUS: &str = "anonymous";

/// As many addresses as a network with a prefix of 8 bits has, or of 32: more is as good as the whole internet.
const ADDRESSES_MAX_IPV4: u128 = 1 << (32 - 8);
const ADDRESSES_MAX_IPV6: u128 = 1 << (128 - 32);

/// Returns true if a policy of these statements is public. Networks count together: many narrow ones are a wide
/// one, in one condition or in several statements.
pub(crate) fn is_public(statements: &[Statement]) -> bool {
    let mut networks = Vec::new();
    for statement in statements.iter().filter(|statement| is_for_everybody(statement)) {
        if statement.conditions.iter().any(is_narrowing) {
            continue;
        }
        match statement.conditions.iter().find_map(fixed_networks) {
            Some(fixed) => networks.extend(fixed),
            None => return true,
        }
    }
    is_wide(&networks)
}

fn is_for_everybody(statement: &Statement) -> bool {
    !statement.is_deny && statement.principals.as_ref().is_some_and(|principals| principals.is_everybody())
}

fn is_narrowing(condition: &Condition) -> bool {
    let Some((family, operands)) = condition.required() else { return false };
    if !matches!(family, Family::Text | Family::TextIgnoringCase | Family::Like | Family::Arn) {
        return false;
    }
    let mut templates = operands.iter().map(Operand::template);
    match condition.key.name.as_str() {
        ACCESS_POINT => templates.all(|template| template.is_some_and(is_access_point_of_account)),
        USER_ID => templates.all(|template| template.is_some_and(is_user_id)),
        key if NARROWING_KEYS.contains(&key) => {
            templates.all(|template| template.is_some_and(Template::is_one_text))
        }
        _ => false,
    }
}

/// Sessions of a role have `AROLEID:NAME`, and any caller that may assume it chooses the name.
fn is_user_id(template: &Template) -> bool {
    let text = template.widest();
    template.is_one_text() && !text.contains(&b':') && !text.eq_ignore_ascii_case(ANONYMOUS.as_bytes())
}

/// The name of an access point may be a pattern, if its account is fixed.
fn is_access_point_of_account(template: &Template) -> bool {
    let text = template.widest();
    let parts: Vec<&[u8]> = text.splitn(6, |byte| *byte == b':').collect();
    let [.., account, _] = parts.as_slice() else { return false };
    let is_account = account.len() == 12 && account.iter().all(u8::is_ascii_digit);
    parts.len() == 6 && is_account && parts[..5].iter().all(|part| part.iter().all(|byte| *byte < ANY_ONE))
}

/// Returns the networks of a condition that allows no other.
fn fixed_networks(condition: &Condition) -> Option<Vec<IpNet>> {
    let (family, operands) = condition.required()?;
    if family != Family::Network || condition.key.name != SOURCE_IP || condition.key.source != KeySource::Request {
        return None;
    }
    let network = |operand: &Operand| match operand {
        Operand::Typed(Typed::Scalar(Scalar::Network(network))) => Some(*network),
        _ => None,
    };
    operands.iter().map(network).collect()
}

fn is_wide(networks: &[IpNet]) -> bool {
    let is_of_internet = |network: &&IpNet| match network {
        IpNet::V4(network) => !is_private_ipv4(network),
        IpNet::V6(network) => !is_private_ipv6(network),
    };
    let networks: Vec<IpNet> = networks.iter().filter(is_of_internet).copied().collect();
    let (mut of_4, mut of_6) = (0_u128, 0_u128);
    for network in IpNet::aggregate(&networks) {
        match network {
            IpNet::V4(network) => of_4 += 1 << (32 - u32::from(network.prefix_len())),
            IpNet::V6(network) => {
                of_6 = of_6.saturating_add(
                    1_u128.checked_shl(128 - u32::from(network.prefix_len())).unwrap_or(u128::MAX),
                );
            }
        }
    }
    of_4 > ADDRESSES_MAX_IPV4 || of_6 > ADDRESSES_MAX_IPV6
}

/// Returns true for networks that are not reached over the internet.
fn is_private_ipv4(network: &Ipv4Net) -> bool {
    let private = [([10, 0, 0, 0], 8), ([172, 16, 0, 0], 12), ([192, 168, 0, 0], 16)];
    private.iter().any(|(address, bits)| {
        let outer = Ipv4Net::new((*address).into(), *bits);
        outer.is_ok_and(|outer| outer.contains(network))
    })
}

fn is_private_ipv6(network: &Ipv6Net) -> bool {
    Ipv6Net::new([0xfc00, 0, 0, 0, 0, 0, 0, 0].into(), 7).is_ok_and(|outer| outer.contains(network))
}
