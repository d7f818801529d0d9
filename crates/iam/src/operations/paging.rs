//! Pages of listings.

use super::{Answer, IamError, Parameters};

const ITEMS_DEFAULT: usize = 100;
const ITEMS_MAX: usize = 1_000;

/// `Marker` and `MaxItems`.
pub(crate) struct Paging {
    after: Option<String>,
    items_max: usize,
}

impl Paging {
    pub(crate) fn take(parameters: &mut Parameters) -> Result<Self, IamError> {
        let items_max = parameters.number("MaxItems", 1..=ITEMS_MAX)?.unwrap_or(ITEMS_DEFAULT);
        Ok(Paging { after: parameters.take("Marker"), items_max })
    }

    /// The page of these items, which are named by their keys; the marker of the next page, if there is one.
    pub(crate) fn page<T>(self, items: impl IntoIterator<Item = (String, T)>) -> Page<T> {
        let mut items: Vec<(String, T)> = items.into_iter().collect();
        items.sort_by(|one, other| one.0.cmp(&other.0));
        if let Some(after) = &self.after {
            items.retain(|(key, _)| key > after);
        }
        let is_truncated = items.len() > self.items_max;
        items.truncate(self.items_max);
        let marker = items.last().filter(|_| is_truncated).map(|(key, _)| key.clone());
        Page { items: items.into_iter().map(|(_, item)| item).collect(), marker }
    }
}

/// One page.
pub(crate) struct Page<T> {
    pub items: Vec<T>,
    pub marker: Option<String>,
}

impl<T> Page<T> {
    /// Adds behind the items whether there are more.
    pub(crate) fn end(&self, answer: Answer) -> Answer {
        answer.text("IsTruncated", self.marker.is_some()).optional("Marker", self.marker.as_ref())
    }
}
