//! Names of an image's objects. Each 4 MiB of an image are one object, and beside it are its states at snapshots:
//! the object's content before its first change after that snapshot.

use atoll_types::ObjectName;

/// The first bytes of the names of all objects of all images.
pub(crate) const ALL_IMAGES_PREFIX: &str = "img.";

/// The id of the image that an object of this name is of; `None` if it is of none.
pub(crate) fn image_id_of(name: &ObjectName) -> Option<&str> {
    let (id, _) = name.as_str().strip_prefix(ALL_IMAGES_PREFIX)?.split_once('.')?;
    Some(id)
}

/// The first bytes of the names of all objects of an image.
pub(crate) fn image_prefix(image_id: &str) -> String {
    format!("img.{image_id}.")
}

/// The name of an object of an image.
pub(crate) fn object_name(image_id: &str, index: u64) -> ObjectName {
    ObjectName::new(&format!("img.{image_id}.{index:08x}")).expect("the name is short")
}

/// The name of an object's state that is kept for the snapshots up to this number.
pub(crate) fn kept_name(image_id: &str, index: u64, number: u64) -> ObjectName {
    ObjectName::new(&format!("img.{image_id}.{index:08x}@{number:016x}")).expect("the name is short")
}

/// Parts of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    /// Which object of the image.
    pub index: u64,
    /// Newest snapshot that it is the object's state of; `None` for the object itself.
    pub kept_for: Option<u64>,
}

/// Takes the name of an object of this image apart; `None` if it is no such name.
pub(crate) fn parse(image_id: &str, name: &ObjectName) -> Option<Part> {
    let rest = name.as_str().strip_prefix("img.")?.strip_prefix(image_id)?.strip_prefix('.')?;
    let (index, number) = match rest.split_once('@') {
        Some((index, number)) => (index, Some(number)),
        None => (rest, None),
    };
    let number_of = |text: &str| u64::from_str_radix(text, 16).ok();
    let kept_for = match number {
        Some(text) => Some(number_of(text)?),
        None => None,
    };
    Some(Part { index: number_of(index)?, kept_for })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let part = |name: &ObjectName| parse("00ab", name);
        assert_eq!(part(&object_name("00ab", 7)), Some(Part { index: 7, kept_for: None }));
        assert_eq!(
            part(&kept_name("00ab", u64::from(u32::MAX), 9)),
            Some(Part { index: 0xffff_ffff, kept_for: Some(9) })
        );
        for other in ["img.00ab.xyz", "img.00ab.01@", "img.00ac.00000001", "img.00ab1.00000001", "other"] {
            assert_eq!(part(&ObjectName::new(other).unwrap()), None, "{other}");
        }
        assert!(object_name("00ab", 7).as_str().starts_with(&image_prefix("00ab")));
        assert_eq!(image_id_of(&kept_name("00ab", 7, 9)), Some("00ab"));
        assert_eq!(image_id_of(&ObjectName::new("img.00ab").unwrap()), None);
    }
}
