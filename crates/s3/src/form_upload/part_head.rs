//! The headers of one part of a form.

use super::parser::FormError;

/// Values of the headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartHead {
    pub name: String,
    /// As it was sent, perhaps with a path.
    pub file_name: Option<String>,
}

impl PartHead {
    pub(super) fn parse(headers: &[u8]) -> Result<Self, FormError> {
        let text = std::str::from_utf8(headers).map_err(|_| FormError::Malformed("a header is no UTF-8"))?;
        let mut found = None;
        for line in text.split("\r\n") {
            let (name, value) = line.split_once(':').ok_or(FormError::Malformed("a part has no proper header"))?;
            if name.starts_with([' ', '\t']) {
                return Err(FormError::Malformed("a header continues in a second line"));
            }
            match name.trim_end().to_ascii_lowercase().as_str() {
                "content-disposition" if found.is_some() => {
                    return Err(FormError::Malformed("a part has two Content-Dispositions"));
                }
                "content-disposition" => found = Some(Self::of_disposition(value)?),
                "content-transfer-encoding" if !is_plain(value) => {
                    return Err(FormError::Malformed("a part has an encoding of its own"));
                }
                _ => {}
            }
        }
        found.ok_or(FormError::Malformed("a part has no Content-Disposition"))
    }

    fn of_disposition(value: &str) -> Result<Self, FormError> {
        let value = value.trim();
        let kind = value.split(';').next().unwrap_or_default();
        if !kind.trim().eq_ignore_ascii_case("form-data") {
            return Err(FormError::Malformed("a Content-Disposition is not form-data"));
        }
        let (mut name, mut file_name) = (None, None);
        let mut rest = &value[kind.len()..];
        while let Some((key, text, behind)) = parameter(rest)? {
            let place = match key.to_ascii_lowercase().as_str() {
                "name" => &mut name,
                "filename" => &mut file_name,
                // RFC 7578 forbids these, and whoever sends one means it.
                "name*" | "filename*" => return Err(FormError::Malformed("a name is encoded (RFC 5987)")),
                _ => &mut None,
            };
            if place.replace(text).is_some() {
                return Err(FormError::Malformed("a part has two names"));
            }
            rest = behind;
        }
        let name = name.ok_or(FormError::Malformed("a part has no name"))?;
        Ok(PartHead { name, file_name })
    }
}

fn is_plain(encoding: &str) -> bool {
    ["7bit", "8bit", "binary"].iter().any(|plain| encoding.trim().eq_ignore_ascii_case(plain))
}

/// Returns the next of the parameters `; key=value; key="value"`, and the text behind it.
fn parameter(text: &str) -> Result<Option<(&str, String, &str)>, FormError> {
    const BROKEN: FormError = FormError::Malformed("a Content-Disposition cannot be read");
    let text = text.trim_start_matches([' ', '\t']);
    if text.is_empty() || text == ";" {
        return Ok(None);
    }
    let (key, value) = text.strip_prefix(';').and_then(|text| text.split_once('=')).ok_or(BROKEN)?;
    let value = value.trim_start_matches([' ', '\t']);
    let Some(quoted) = value.strip_prefix('"') else {
        let end = value.find(';').unwrap_or(value.len());
        return Ok(Some((key.trim(), value[..end].trim_end().to_owned(), &value[end..])));
    };
    let mut unquoted = String::new();
    let mut characters = quoted.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Ok(Some((key.trim(), unquoted, &quoted[at + 1..]))),
            // Only a quote is escaped: browsers send other backslashes as they are in a path.
            '\\' if characters.next_if(|(_, next)| *next == '"').is_some() => unquoted.push('"'),
            _ => unquoted.push(character),
        }
    }
    Err(BROKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(disposition: &str) -> Option<(String, Option<String>)> {
        let parsed = PartHead::parse(format!("Content-Disposition: {disposition}").as_bytes()).ok()?;
        Some((parsed.name, parsed.file_name))
    }

    #[test]
    fn names_are_read_as_clients_send_them() {
        for (disposition, name, file_name) in [
            (r#"form-data; name="key""#, "key", None),
            (r#"form-data; name=key"#, "key", None),
            (r#"Form-Data;NAME="key" ; filename="a;b.txt""#, "key", Some("a;b.txt")),
            (r#"form-data; name="a\"b"; filename="C:\dir\x.txt""#, "a\"b", Some(r"C:\dir\x.txt")),
            (r#"form-data; name="file"; filename="é %22.txt"; size=3"#, "file", Some("é %22.txt")),
            (r#"form-data; name="file"; filename="";"#, "file", Some("")),
        ] {
            assert_eq!(head(disposition), Some((name.into(), file_name.map(Into::into))), "{disposition}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for disposition in [
            "form-data",
            "attachment; name=\"key\"",
            "form-data; filename=\"x\"",
            "form-data; name=\"key",
            "form-data; name=\"key\"; name=\"other\"",
            "form-data; name=\"key\" other",
            "form-data; name=\"file\"; filename*=utf-8''x",
        ] {
            assert_eq!(head(disposition), None, "{disposition}");
        }
        let parse = |headers: &str| PartHead::parse(headers.as_bytes());
        let good = "Content-Disposition: form-data; name=a";
        assert!(
            parse(&format!("{good}\r\nContent-Type: text/plain\r\nContent-Transfer-Encoding: binary")).is_ok()
        );
        for wrong in [
            format!("{good}\r\nContent-Transfer-Encoding: base64"),
            format!("{good}\r\n filename=x"),
            format!("{good}\r\n{good}"),
            format!("{good}\r\nnonsense"),
            String::new(),
        ] {
            assert!(parse(&wrong).is_err(), "{wrong}");
        }
        assert!(PartHead::parse(b"Content-Disposition: form-data; name=\xff").is_err());
    }
}
