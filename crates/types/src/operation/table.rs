//! A table of kinds: one declaration from which come an enum, its byte encoding, the bound on its size,
//! the strategies of its property tests and the table in the documents.

use atoll_codec::{CodecError, Reader, Writer};

/// How one field of a kind is encoded. Most types are their own shape; a type that is encoded in several
/// ways (byte strings with different limits) has a shape for each.
pub trait Shape {
    /// The enum with the value.
    type Value;

    /// Text of the documents behind the field's name; empty if the name suffices.
    const WORDS: &'static str;

    /// Appends the value.
    fn encode(value: &Self::Value, writer: &mut Writer);

    /// Reads a value; `what` names it in errors.
    fn decode(reader: &mut Reader, what: &'static str) -> Result<Self::Value, CodecError>;

    /// Bytes that a long value takes in a control segment, beyond the fixed part of its kind, its trace in the
    /// log included.
    fn variable_bytes(_value: &Self::Value) -> usize {
        0
    }
}

/// One kind of a table, for the documents.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The first byte of its encoding.
    pub number: u8,
    /// Its name.
    pub name: &'static str,
    /// True if only members of a PG send it to each other.
    pub is_between_members: bool,
    /// Names and words of its fields.
    pub fields: &'static [(&'static str, &'static str)],
}

impl Kind {
    /// The kind's row in a Markdown table.
    pub fn row(&self) -> String {
        let field = |(name, words): &(&str, &str)| format!("{} {words}", name.replace('_', " ")).trim().to_owned();
        let fields: Vec<String> = self.fields.iter().map(field).collect();
        let audience = if self.is_between_members { "members" } else { "" };
        format!("| {} | {} | {audience} | {} |\n", self.number, self.name, fields.join(", "))
    }
}

/// The Markdown table of some kinds; `heading` is the title of the second column.
pub fn markdown(heading: &str, kinds: &[Kind]) -> String {
    let rows: String = kinds.iter().map(Kind::row).collect();
    format!("| kind | {heading} | only between | fields |\n|---|---|---|---|\n{rows}")
}

/// The part of a page between the marks of a table, `<!-- NAME:begin -->` and `<!-- NAME:end -->`; none if
/// the page has no such marks.
pub fn marked<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let (_, behind) = page.split_once(&format!("<!-- {name}:begin -->\n"))?;
    behind.split_once(&format!("<!-- {name}:end -->")).map(|(table, _)| table)
}

/// Declares an enum by its table: for each kind the number that begins its encoding, its name, and its
/// fields in the order in which they are encoded. A kind marked `(members)` is sent only between the members
/// of a PG. `field: Type` is encoded by the [`Shape`] that the type
/// is itself, `field: Type as Shape` by another one.
///
/// It gives the enum `encode_kind`, `decode_kind`, `is_between_members`, `variable_bytes` and `KINDS`; and, in
/// tests, `strategies`, for which each shape implements the trait `Sample` of the module.
#[macro_export]
macro_rules! kinds {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident ($what:literal) {
            $(
                $(#[$kind_attribute:meta])*
                $number:literal $(($audience:ident))? => $kind:ident $({
                    $( $(#[$field_attribute:meta])* $field:ident: $type:ty $(as $shape:ty)? ),+ $(,)?
                })?
            ),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $( $(#[$kind_attribute])* $kind $({ $( $(#[$field_attribute])* $field: $type ),+ })? ),+
        }

        impl $name {
            /// All kinds, in the order of the table.
            pub const KINDS: &'static [$crate::operation::table::Kind] = &[
                $( $crate::operation::table::Kind {
                    number: $number,
                    name: stringify!($kind),
                    is_between_members: $crate::kinds!(@members $($audience)?),
                    fields: &[ $($(
                        (stringify!($field),
                         <$crate::kinds!(@shape $type $(as $shape)?) as $crate::operation::table::Shape>::WORDS)
                    ),+)? ],
                } ),+
            ];

            /// Appends the kind's number and its fields.
            fn encode_kind(&self, writer: &mut atoll_codec::Writer) {
                match self {
                    $( Self::$kind $({ $($field),+ })? => {
                        writer.u8($number);
                        $($(
                            <$crate::kinds!(@shape $type $(as $shape)?) as $crate::operation::table::Shape>
                                ::encode($field, writer);
                        )+)?
                    } ),+
                }
            }

            /// Reads a number and the fields of its kind.
            fn decode_kind(reader: &mut atoll_codec::Reader) -> Result<Self, atoll_codec::CodecError> {
                Ok(match reader.u8($what)? {
                    $( $number => Self::$kind $({ $(
                        $field: <$crate::kinds!(@shape $type $(as $shape)?) as $crate::operation::table::Shape>
                            ::decode(reader, stringify!($field))?
                    ),+ })?, )+
                    value => return Err(atoll_codec::CodecError::Invalid { what: $what, value: u64::from(value) }),
                })
            }

            /// Returns true if only members of a PG send it to each other.
            pub fn is_between_members(&self) -> bool {
                match self {
                    $( Self::$kind $({ $($field: _),+ })? => $crate::kinds!(@members $($audience)?) ),+
                }
            }

            /// Bytes that its long fields take, their trace in the log included.
            pub fn variable_bytes(&self) -> usize {
                match self {
                    $( Self::$kind $({ $($field),+ })? => {
                        0 $($(
                            + <$crate::kinds!(@shape $type $(as $shape)?) as $crate::operation::table::Shape>
                                ::variable_bytes($field)
                        )+)?
                    } ),+
                }
            }

            /// Returns strategies for samples of each kind.
            #[cfg(test)]
            pub(crate) fn strategies() -> Vec<proptest::strategy::BoxedStrategy<Self>> {
                use proptest::strategy::{Just, Strategy};
                vec![ $(
                    (Just(()), $($( <$crate::kinds!(@shape $type $(as $shape)?) as Sample>::sample(), )+)?)
                        .prop_map(|((), $($( $field, )+)?)| Self::$kind $({ $($field),+ })?)
                        .boxed()
                ),+ ]
            }
        }
    };
    (@members) => { false };
    (@members members) => { true };
    (@shape $type:ty) => { $type };
    (@shape $type:ty as $shape:ty) => { $shape };
}
