//! Which policies of buckets are public, as AWS defines it for its public access block.

use ipnet::IpNet;

use crate::condition::Condition;
use crate::operand::{Family, Operand, Scalar, Typed};
use crate::statement::Statement;

/// Keys whose fixed values say who is meant.
const NARROWING_KEYS: [&str; 10] = [
    "aws:sourcevpc",
    "aws:sourcevpce",
    "aws:sourcearn",
    "aws:sourceaccount",
    "aws:principalorgid",
    "aws:principalarn",
    "aws:principalaccount",
    "aws:userid",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
];

/// Shorter prefixes of networks are as good as the whole internet.
const PREFIX_BITS_MIN_IPV4: u8 = 8;
const PREFIX_BITS_MIN_IPV6: u8 = 32;

pub(crate) fn is_public(statement: &Statement) -> bool {
    let is_for_everybody = statement.principals.as_ref().is_some_and(|principals| principals.is_everybody());
    !statement.is_deny && is_for_everybody && !statement.conditions.iter().any(is_narrowing)
}

fn is_narrowing(condition: &Condition) -> bool {
    let Some((family, operands)) = condition.required() else { return false };
    let key = condition.key.name.as_str();
    match family {
        Family::Network => key == "aws:sourceip" && operands.iter().all(is_narrow_network),
        Family::Text | Family::TextIgnoringCase | Family::Like | Family::Arn => {
            let is_fixed = |operand: &Operand| operand.template().is_some_and(|template| template.is_one_text());
            NARROWING_KEYS.contains(&key) && operands.iter().all(is_fixed)
        }
        Family::Number | Family::Date | Family::Bool | Family::Binary => false,
    }
}

fn is_narrow_network(operand: &Operand) -> bool {
    let Operand::Typed(Typed::Scalar(Scalar::Network(network))) = operand else { return false };
    match network {
        IpNet::V4(network) => network.prefix_len() >= PREFIX_BITS_MIN_IPV4,
        IpNet::V6(network) => network.prefix_len() >= PREFIX_BITS_MIN_IPV6,
    }
}
