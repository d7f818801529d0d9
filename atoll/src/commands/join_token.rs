//! Where the text of a join token comes from. It is as secret as a password, and every user of a host can read command
//! lines, so it is never taken from there.

use std::path::{Path, PathBuf};

use anyhow::bail;
use atoll_node::JOIN_TOKEN_VARIABLE;

use super::secret_file::read_secret_text;

const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// Reads a token from a file, from standard input (`-`), or, if no file is named, from `ATOLL_JOIN_TOKEN`.
pub fn read(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(file) = file else {
        return Ok(std::env::var(JOIN_TOKEN_VARIABLE).ok().filter(|text| !text.is_empty()));
    };
    if file.to_string_lossy().starts_with("atoll-join-") {
        bail!(
            "a join token on the command line can be read by every user of this host, so take this one as known: revoke it \
             ('atoll cluster token rm'), and give another one in a file, by standard input ('-'), or in {JOIN_TOKEN_VARIABLE}"
        );
    }
    let mut text = read_secret_text(file, "a join token", TOKEN_BYTES_MAX)?;
    Ok(Some(std::mem::take(&mut *text)))
}

/// The arguments of this process without those that say where a token is.
pub fn without_token(arguments: impl Iterator<Item = std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    let mut left = Vec::new();
    let mut skips = false;
    for argument in arguments {
        let text = argument.to_string_lossy();
        if std::mem::take(&mut skips) || text.starts_with("--join=") {
            continue;
        }
        skips = text == "--join";
        if !skips {
            left.push(argument);
        }
    }
    left
}

/// A file with a token.
#[derive(clap::Args)]
pub struct TokenFileArgument {
    /// A file with a token of 'atoll cluster token create', or - for standard input; without it the token itself is
    /// in ATOLL_JOIN_TOKEN
    #[arg(value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_about_a_token_are_left_out() {
        let left = |arguments: &[&str]| without_token(arguments.iter().map(Into::into));
        assert_eq!(left(&["up", "--join", "file", "--osds", "2"]), ["up", "--osds", "2"]);
        assert_eq!(left(&["up", "--join=file", "--osds", "2", "--join", "-"]), ["up", "--osds", "2"]);
    }

    #[test]
    fn a_token_is_not_taken_from_the_command_line_and_not_repeated() {
        let error = read(Some(Path::new("atoll-join-1.c2VjcmV0"))).unwrap_err().to_string();
        assert!(error.contains("revoke it") && !error.contains("c2VjcmV0"), "{error}");
    }
}
