//! Values of policies: texts with wildcards and variables, such as `home/${aws:username}/*`.

use std::borrow::Cow;

use crate::context::{Context, Key};
use crate::fault::Fault;
use crate::pattern;

/// Which characters of a value are special.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Syntax {
    /// `*` and `?`.
    pub(crate) has_wildcards: bool,
    /// `${...}`, since version 2012-10-17 of the language.
    pub(crate) has_variables: bool,
}

/// A value of a policy. Wildcards are as in [`pattern::compile`], so that a `*` that a variable brings stays a
/// star.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    Fixed(Vec<u8>),
    Mixed(Vec<Piece>),
}

#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Fixed(Vec<u8>),
    Variable { key: Key, default: Option<String> },
}

impl Template {
    pub(crate) fn parse(text: &str, syntax: Syntax) -> Result<Template, Fault> {
        let mut pieces = Vec::new();
        let mut fixed = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${").filter(|_| syntax.has_variables) {
            add_fixed(&mut fixed, &rest[..start], syntax);
            let inner = &rest[start + 2..];
            rest = match inner.as_bytes() {
                [escaped @ (b'*' | b'?' | b'$'), b'}', ..] => {
                    fixed.push(*escaped);
                    &inner[2..]
                }
                _ => {
                    let (variable, behind) = parse_variable(inner).ok_or_else(|| malformed_variable(text))?;
                    if !fixed.is_empty() {
                        pieces.push(Piece::Fixed(std::mem::take(&mut fixed)));
                    }
                    pieces.push(variable);
                    behind
                }
            };
        }
        add_fixed(&mut fixed, rest, syntax);
        if pieces.is_empty() {
            return Ok(Template::Fixed(fixed));
        }
        if !fixed.is_empty() {
            pieces.push(Piece::Fixed(fixed));
        }
        Ok(Template::Mixed(pieces))
    }

    /// With the values of variables; `None` if one has no value, or several.
    pub(crate) fn resolve(&self, context: &Context<'_>) -> Option<Cow<'_, [u8]>> {
        let pieces = match self {
            Template::Fixed(bytes) => return Some(Cow::Borrowed(bytes)),
            Template::Mixed(pieces) => pieces,
        };
        let mut resolved = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Fixed(bytes) => resolved.extend_from_slice(bytes),
                Piece::Variable { key, default } => {
                    let is_found = context.with_values(key, |values| {
                        let value = if let [value] = values { Some(value.as_ref()) } else { None };
                        let value = value.or(default.as_deref())?;
                        resolved.extend_from_slice(value.as_bytes());
                        Some(())
                    });
                    is_found?;
                }
            }
        }
        Some(Cow::Owned(resolved))
    }

    pub(crate) fn matches(&self, context: &Context<'_>, text: &str) -> bool {
        self.resolve(context).is_some_and(|resolved| pattern::matches_compiled(&resolved, text))
    }

    /// Without wildcards and variables.
    pub(crate) fn is_one_text(&self) -> bool {
        matches!(self, Template::Fixed(bytes) if bytes.iter().all(|byte| *byte < pattern::ANY_ONE))
    }

    /// A pattern that matches whatever this one matches, whatever values variables have.
    pub(crate) fn widest(&self) -> Cow<'_, [u8]> {
        match self {
            Template::Fixed(bytes) => Cow::Borrowed(bytes),
            Template::Mixed(pieces) => pieces
                .iter()
                .flat_map(|piece| match piece {
                    Piece::Fixed(bytes) => bytes.as_slice(),
                    Piece::Variable { .. } => &[pattern::ANY_RUN],
                })
                .copied()
                .collect(),
        }
    }

    /// The keys of its variables.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        let pieces = match self {
            Template::Fixed(_) => &[],
            Template::Mixed(pieces) => pieces.as_slice(),
        };
        pieces.iter().filter_map(|piece| match piece {
            Piece::Fixed(_) => None,
            Piece::Variable { key, .. } => Some(key),
        })
    }
}

fn add_fixed(fixed: &mut Vec<u8>, text: &str, syntax: Syntax) {
    if syntax.has_wildcards {
        fixed.extend(text.bytes().map(pattern::compile_byte));
    } else {
        fixed.extend_from_slice(text.as_bytes());
    }
}

/// Reads the text behind `${`, and returns the text behind `}`.
fn parse_variable(inner: &str) -> Option<(Piece, &str)> {
    let end = inner.find([',', '}'])?;
    let name = inner[..end].trim_end_matches(' ');
    let is_name = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'$' | b'*' | b'?' | b'\'');
    if name.is_empty() || !name.bytes().all(is_name) {
        return None;
    }
    let key = Key::new(name);
    if inner.as_bytes()[end] == b'}' {
        return Some((Piece::Variable { key, default: None }, &inner[end + 1..]));
    }
    let quoted = inner[end + 1..].trim_start_matches(' ').strip_prefix('\'')?;
    let (default, behind) = quoted.split_once('\'')?;
    let behind = behind.trim_start_matches(' ').strip_prefix('}')?;
    Some((Piece::Variable { key, default: Some(default.to_owned()) }, behind))
}

fn malformed_variable(text: &str) -> Fault {
    Fault::new(
        format!("\"{text}\" has a malformed policy variable"),
        "Write ${key} or ${key, 'default'}, and ${$} for a dollar sign that is followed by a brace",
    )
}
