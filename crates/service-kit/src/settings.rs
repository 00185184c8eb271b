//! Reads the settings from flags and environment, and speaks of them without telling secrets.
//!
//! An environment variable that is set but empty counts as unset, since that is how a shell file
//! says "not this one". A wrong value is named by flag and variable and never repeated when it may
//! be a secret; clap's own message would print it.

use std::env;
use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Parser};

/// What stands for a secret.
const REDACTED: &str = "***";

/// Settings as read, with their description for the start line.
pub(crate) struct Parsed<S> {
    pub(crate) settings: S,
    pub(crate) description: String,
}

/// Why a program must not go on.
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) exit_code: u8,
}

/// Reads the settings of this process; for programs that are not services. Prints help, version or
/// what is wrong, and then returns the exit code.
///
/// # Errors
/// The exit code: 0 after help or version, 64 when a setting is wrong.
pub fn parse<S: Parser>() -> Result<S, u8> {
    read(env::args_os().collect())
        .map(|parsed: Parsed<S>| parsed.settings)
        .map_err(Refusal::report)
}

impl Refusal {
    /// Prints the message where it belongs and gives the exit code.
    pub(crate) fn report(self) -> u8 {
        if self.exit_code == 0 {
            print!("{}", self.message);
        } else {
            eprint!("{}", self.message);
        }
        self.exit_code
    }
}

pub(crate) fn read<S: Parser>(arguments: Vec<OsString>) -> Result<Parsed<S>, Refusal> {
    // The whole command names settings, also those whose variable is empty and therefore ignored.
    let known = S::command();
    let command = with_negative_numbers(without_empty_variables(known.clone()));
    let refuse = |error: clap::Error| refusal(&known, &error);
    let mut matches = command.try_get_matches_from(arguments).map_err(refuse)?;
    let description = describe(&known, &matches);
    let settings = S::from_arg_matches_mut(&mut matches).map_err(refuse)?;
    Ok(Parsed {
        settings,
        description,
    })
}

fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command
        .mut_args(|arg| {
            if is_empty(&arg) {
                arg.env(None::<&str>)
            } else {
                arg
            }
        })
        .mut_subcommands(without_empty_variables)
}

/// Lets `--flag -1` give the flag a value, so that a wrong number is refused by the flag's name. Without
/// that, `-1` would be taken for a flag of its own, of which nobody has heard.
fn with_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let takes_values = arg.get_action().takes_values();
            arg.allow_negative_numbers(takes_values)
        })
        .mut_subcommands(with_negative_numbers)
}

/// How a setting is called: its flag, and its variable if it has one.
fn name_of(arg: &Arg) -> String {
    let flag = arg
        .get_long()
        .map_or_else(|| arg.get_id().to_string(), |long| format!("--{long}"));
    match arg.get_env().and_then(|name| name.to_str()) {
        Some(variable) => format!("{flag} ({variable})"),
        None => flag,
    }
}

fn refusal(command: &Command, error: &clap::Error) -> Refusal {
    let exit_code = if error.use_stderr() {
        crate::EXIT_USAGE
    } else {
        0
    };
    let message = match error.kind() {
        ErrorKind::ValueValidation => wrong_value(command, error),
        ErrorKind::MissingRequiredArgument => missing(command, error),
        _ => None,
    };
    Refusal {
        message: message.unwrap_or_else(|| error.to_string()),
        exit_code,
    }
}

fn wrong_value(command: &Command, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let reason = error.source().map(ToString::to_string);
    Some(format!(
        "error: {} is wrong: {}\n",
        setting(command, arg),
        reason.as_deref().unwrap_or("not a valid value")
    ))
}

fn missing(command: &Command, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::Strings(args)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let names: Vec<String> = args.iter().map(|arg| setting(command, arg)).collect();
    Some(format!("error: missing: {}\n", names.join(", ")))
}

/// Finds the setting that clap calls `--flag <VALUE>`, in a command or any of its subcommands.
fn setting(command: &Command, shown: &str) -> String {
    let flag = shown.split_whitespace().next().unwrap_or(shown);
    find(command, flag).unwrap_or_else(|| shown.to_owned())
}

fn find(command: &Command, flag: &str) -> Option<String> {
    let long = flag.strip_prefix("--")?;
    let own = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(long));
    own.map(name_of)
        .or_else(|| command.get_subcommands().find_map(|sub| find(sub, flag)))
}

/// Every setting in one line, secrets redacted.
fn describe(command: &Command, matches: &ArgMatches) -> String {
    let mut parts = Vec::new();
    for arg in command.get_arguments() {
        let Some(name) = arg.get_long() else { continue };
        let Ok(Some(raw)) = matches.try_get_raw(arg.get_id().as_str()) else {
            continue;
        };
        let value: Vec<String> = raw.map(|v| v.to_string_lossy().into_owned()).collect();
        let value = value.join(",");
        let shown = if arg.is_hide_env_values_set() {
            redact_url(&value)
        } else {
            value
        };
        parts.push(format!("{name}={shown}"));
    }
    parts.join(" ")
}

/// A URL without its user, password and query; of any other secret nothing is left.
///
/// A '?' or '#' before the last '@' belongs to a password or begins a query that holds an '@'. Nobody
/// can tell which, so that nothing but the scheme of such a URL is shown.
#[must_use]
pub fn redact_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return REDACTED.to_owned();
    };
    let without_query = |text: &str| text.split(['?', '#']).next().unwrap_or_default().to_owned();
    // The last '@': a password may hold one.
    match rest.rsplit_once('@') {
        Some((secret, _)) if secret.contains(['?', '#']) => format!("{scheme}://{REDACTED}"),
        Some((_, place)) => format!("{scheme}://{REDACTED}@{}", without_query(place)),
        None => format!("{scheme}://{}", without_query(rest)),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::values;

    #[derive(Debug, Parser)]
    #[command(name = "sample")]
    struct Sample {
        /// Secret
        #[arg(long, env = "SAMPLE_UNSET_URL", hide_env_values = true, value_parser = values::redis_url)]
        url: SecretString,
        /// Number
        #[arg(long, default_value = "5", value_parser = values::count::<10>)]
        size: usize,
    }

    fn refusal(arguments: &[&str]) -> Refusal {
        let arguments = std::iter::once("sample").chain(arguments.iter().copied());
        match read::<Sample>(arguments.map(Into::into).collect()) {
            Ok(_) => panic!("must be refused"),
            Err(refusal) => refusal,
        }
    }

    #[test]
    fn a_wrong_value_is_named_and_a_secret_never_shown() {
        let wrong = refusal(&["--url", "hunter2@host"]);
        assert_eq!(wrong.exit_code, 64);
        assert!(wrong.message.contains("--url (SAMPLE_UNSET_URL) is wrong"));
        assert!(!wrong.message.contains("hunter2"));
        let size = refusal(&["--url", "redis://h", "--size", "0"]);
        assert_eq!(
            size.message,
            "error: --size is wrong: must be from 1 to 10\n"
        );
    }

    #[test]
    fn a_negative_number_is_refused_by_the_name_of_its_flag() {
        for arguments in [["--size", "-1"], ["--size", "-0.5"]] {
            let refused = refusal(&[&["--url", "redis://h"], arguments.as_slice()].concat());
            assert_eq!(refused.exit_code, 64);
            assert!(
                refused
                    .message
                    .starts_with("error: --size is wrong: must be"),
                "{}",
                refused.message
            );
        }
        let unknown = refusal(&["--url", "redis://h", "-1"]);
        assert!(unknown.message.contains("-1"), "{}", unknown.message);
    }

    #[test]
    fn missing_and_unknown_settings_are_named() {
        let missing = refusal(&[]);
        assert_eq!(
            missing.message,
            "error: missing: --url (SAMPLE_UNSET_URL)\n"
        );
        let unknown = refusal(&["--url", "redis://h", "--sise", "3"]);
        assert_eq!(unknown.exit_code, 64);
        assert!(unknown.message.contains("--sise"));
        assert_eq!(refusal(&["--help"]).exit_code, 0);
    }

    #[test]
    fn no_part_of_a_password_survives_whatever_it_holds() {
        for (url, shown) in [
            ("redis://u:p@ss@h:1/2?x=y", "redis://***@h:1/2"),
            ("redis://h:1/2?x=hunter2#y", "redis://h:1/2"),
            ("redis://u:hunter2?rest@h:1", "redis://***"),
            ("postgres://u:hunter2#rest@h/d?x=y", "postgres://***"),
            ("postgres://u:p@h/d?password=a@hunter2", "postgres://***"),
            ("hunter2", "***"),
        ] {
            assert_eq!(redact_url(url), shown);
        }
    }

    #[test]
    fn the_description_holds_every_setting_and_no_secret() {
        let arguments = ["sample", "--url", "redis://u:p@ss@host:1/2?x=hunter2"];
        let parsed = read::<Sample>(arguments.map(Into::into).to_vec());
        let Ok(parsed) = parsed else {
            panic!("must be read")
        };
        assert_eq!(parsed.description, "url=redis://***@host:1/2 size=5");
        assert_eq!(parsed.settings.size, 5);
        assert!(!format!("{:?}", parsed.settings).contains("p@ss"));
    }
}
