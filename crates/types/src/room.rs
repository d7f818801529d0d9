//! Kinds of client operations that an OSD's space allows.

use atoll_codec::{CodecError, Reader, Writer};

use crate::operation::table::Shape;

/// Kinds of client operations that an OSD's space allows. The order is that of scarcity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Everything.
    #[default]
    Enough,
    /// It is full: deletes, trims, and operations without new space, such as small overwrites in place.
    Overwrites,
    /// Deletes and trims only: more of its reserve is used than the operations pending when it became full.
    Deletes,
}

impl Room {
    /// Returns true if new data is refused.
    pub fn is_full(self) -> bool {
        self != Room::Enough
    }
}

impl Shape for Room {
    type Value = Room;
    const WORDS: &'static str = "`u8`";

    fn encode(value: &Room, writer: &mut Writer) {
        writer.u8(match value {
            Room::Enough => 0,
            Room::Overwrites => 1,
            Room::Deletes => 2,
        });
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Room, CodecError> {
        match reader.u8(what)? {
            0 => Ok(Room::Enough),
            1 => Ok(Room::Overwrites),
            2 => Ok(Room::Deletes),
            value => Err(CodecError::Invalid { what, value: u64::from(value) }),
        }
    }
}
