//! Second factors of operators.

use atoll_admin::second_factor::{self, Verdict};
use atoll_admin::totp::qr_lines;
use atoll_terminal::print_line;
use clap::Subcommand;
use serde_json::json;

use super::ReachArgument;
use crate::commands::arguments::OutputArguments;
use crate::commands::open_cluster::connected;
use crate::commands::output::print_json;

#[derive(Subcommand)]
pub enum TotpCommand {
    /// Show a QR code and a secret for an authenticator; they count once a code has confirmed them
    #[command(after_help = "\
Examples:
  atoll operator totp enrol ann
  atoll operator totp confirm ann 123456

Operators do it themselves in the console, by their name at the top of the page.")]
    Enrol {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
    },
    /// Confirm the secret by a code: log-ins need one from then on. Recovery codes are shown this once
    #[command(after_help = "Example:\n  atoll operator totp confirm ann 123456")]
    Confirm {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
        /// Code that the authenticator shows
        code: String,
    },
    /// Remove the second factor of an operator who lost it and all recovery codes; the operator's sessions end
    #[command(after_help = "Example:\n  atoll operator totp reset ann")]
    Reset {
        #[command(flatten)]
        output: OutputArguments,
        /// The operator's name
        name: String,
        #[command(flatten)]
        reach: ReachArgument,
    },
}

/// `atoll operator totp`.
pub fn run(command: &TotpCommand) -> anyhow::Result<()> {
    match command {
        TotpCommand::Enrol { output, name } => connected(output, async |open, client| {
            let begun = second_factor::enrol(&client, &*open.keys()?, name).await?;
            if output.json {
                return print_json(&json!({ "name": name, "secret": begun.secret, "url": begun.url }));
            }
            qr_lines(&begun.url).iter().for_each(|line| print_line!("{line}"));
            print_line!("secret {}", begun.secret);
            print_line!("Then confirm it by a code: atoll operator totp confirm {name} CODE");
            Ok(())
        }),
        TotpCommand::Confirm { output, name, code } => connected(output, async |open, client| {
            let codes = match second_factor::confirm(&client, &*open.keys()?, name, code).await? {
                Ok(codes) => codes,
                Err(Verdict::Pause(seconds)) => {
                    anyhow::bail!("there were too many wrong codes; try again in {seconds} s")
                }
                Err(_) => anyhow::bail!("the code is wrong, or was used already; wait for the next one"),
            };
            if output.json {
                return print_json(&json!({ "name": name, "recovery_codes": codes }));
            }
            print_line!("{name} has a second factor. Recovery codes, each for one log-in, shown this once:");
            codes.iter().for_each(|code| print_line!("  {code}"));
            Ok(())
        }),
        TotpCommand::Reset { output, name, reach } => connected(output, async |_, client| {
            second_factor::reset(&client, name, reach.reach()).await?;
            if output.json {
                return print_json(&json!({ "reset": name }));
            }
            print_line!("{name} has no second factor any more");
            Ok(())
        }),
    }
}
