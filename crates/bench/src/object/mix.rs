//! Operations on objects, and their shares.

use serde::{Deserialize, Serialize};

use crate::load::Random;

/// The largest weight of an operation; only their proportions matter.
const WEIGHT_MAX: u32 = 1_000_000;

/// Operation on objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ObjectOperation {
    /// Upload them.
    Put,
    /// Download them.
    Get,
    /// Ask for a page of their names.
    List,
    /// Delete them.
    Delete,
}

impl ObjectOperation {
    /// All there are.
    pub const ALL: [ObjectOperation; 4] =
        [ObjectOperation::Put, ObjectOperation::Get, ObjectOperation::List, ObjectOperation::Delete];

    /// Its name, such as `put`.
    pub fn name(self) -> &'static str {
        match self {
            ObjectOperation::Put => "put",
            ObjectOperation::Get => "get",
            ObjectOperation::List => "list",
            ObjectOperation::Delete => "delete",
        }
    }
}

/// Operations with their weights; each is drawn in proportion to its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationMix(Vec<(ObjectOperation, u32)>);

impl OperationMix {
    /// One operation over and over.
    pub fn only(operation: ObjectOperation) -> Self {
        OperationMix(vec![(operation, 1)])
    }

    /// `put`, or `mixed` if there are several.
    pub fn name(&self) -> &'static str {
        if let [(operation, _)] = self.0.as_slice() { operation.name() } else { "mixed" }
    }

    /// Returns true if this operation is among them.
    pub fn has(&self, operation: ObjectOperation) -> bool {
        self.0.iter().any(|(one, _)| *one == operation)
    }

    /// Returns true if there are several.
    pub fn is_mixed(&self) -> bool {
        self.0.len() > 1
    }

    pub(super) fn draw(&self, random: &mut Random) -> ObjectOperation {
        let all: u64 = self.0.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = random.below(all.max(1));
        for (operation, weight) in &self.0 {
            match left.checked_sub(u64::from(*weight)) {
                None => return *operation,
                Some(rest) => left = rest,
            }
        }
        ObjectOperation::Put
    }
}

impl std::fmt::Display for OperationMix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(one, weight)| format!("{}={weight}", one.name())).collect();
        f.write_str(&parts.join(","))
    }
}

impl std::str::FromStr for OperationMix {
    type Err = String;

    /// Such as `get=70,put=20,list=5,delete=5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |part: &str| {
            format!(
                "'{part}' in '{text}' is not an operation and its weight: name each of put, get, list and delete \
                 once at most, as in get=70,put=20,list=5,delete=5, with weights of 1 to {WEIGHT_MAX}"
            )
        };
        let mut mix = OperationMix(Vec::new());
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').ok_or_else(|| wrong(part))?;
            let operation = ObjectOperation::ALL.into_iter().find(|one| one.name() == name);
            let weight = weight.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
            let (Some(operation), Some(weight)) = (operation, weight) else { return Err(wrong(part)) };
            if mix.has(operation) {
                return Err(wrong(part));
            }
            mix.0.push((operation, weight));
        }
        Ok(mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_drawn_by_weight() {
        let mix: OperationMix = "get=70,put=20,list=5,delete=5".parse().unwrap();
        assert_eq!((mix.name(), mix.to_string().as_str()), ("mixed", "get=70,put=20,list=5,delete=5"));
        let mut random = Random::new(3);
        let drawn: Vec<ObjectOperation> = (0..100_000).map(|_| mix.draw(&mut random)).collect();
        for (operation, weight) in mix.0 {
            let percent = drawn.iter().filter(|one| **one == operation).count() as f64 / 1000.0;
            assert!((percent - f64::from(weight)).abs() < 1.0, "{operation:?} {percent}");
        }
    }

    #[test]
    fn one_operation_has_its_own_name() {
        assert_eq!(OperationMix::only(ObjectOperation::List).name(), "list");
        assert_eq!("get=1".parse::<OperationMix>().unwrap().name(), "get");
    }

    #[test]
    fn an_invalid_mix_is_refused() {
        for text in ["", "get", "get=0", "get=-1", "get=1,get=2", "head=1", "get=1,", "get=99999999999"] {
            assert!(text.parse::<OperationMix>().is_err(), "{text}");
        }
    }
}
