//! What an OSD takes of clients, as far as its space goes.

use atoll_codec::{CodecError, Reader, Writer};

use crate::operation::table::Shape;

/// What an OSD takes of clients, as far as its space goes. The order is that of scarcity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Room {
    /// Everything.
    #[default]
    Enough,
    /// It is full: deletes and trims, and what needs no new space, such as small overwrites in place.
    Overwrites,
    /// Deletes and trims only: of its reserve more is gone than what was under way when it became full.
    Deletes,
}

impl Room {
    /// Whether new data is refused.
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
