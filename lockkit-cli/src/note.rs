//! What other clients see of this one: its identity, and the note of a lock that was taken without
//! one, which has the user and the command line. No secrets: arguments that look like one are left out.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use lockkit::ClientIdentity;

/// The longest note that is made here, in bytes; the library takes 1,000.
const LONGEST: usize = 200;

/// Who runs what.
pub(crate) fn of_command(words: &[OsString]) -> String {
    let line = command_line(words);
    let text = format!("{}: {line}", user());
    let plain: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    shortened(plain.trim(), LONGEST)
}

/// The command line without its secrets.
fn command_line(words: &[OsString]) -> String {
    let mut shown = Vec::new();
    let mut hide_next = false;
    for word in words {
        let word = word.to_string_lossy();
        shown.push(if hide_next { "***".to_owned() } else { without_secrets(&word) });
        hide_next = word.starts_with('-') && !word.contains('=') && is_secret(&word);
    }
    shown.join(" ")
}

/// A word, or a text for a shell, without what looks like a secret in it.
fn without_secrets(text: &str) -> String {
    let mut hide_next = false;
    let mut shown = Vec::new();
    for word in text.split(' ') {
        let word = if hide_next { "***".to_owned() } else { without_secret(word) };
        hide_next = word.starts_with('-') && !word.contains('=') && is_secret(&word);
        shown.push(word);
    }
    shown.join(" ")
}

fn without_secret(word: &str) -> String {
    if let Some((name, _)) = word.split_once('=').filter(|(name, _)| is_secret(name)) {
        return format!("{name}=***");
    }
    match looks_random(word) {
        true => "***".to_owned(),
        false => without_login(word),
    }
}

/// The text without `user:password@`, in URLs or without one.
pub(crate) fn without_logins(text: &str) -> String {
    text.split(' ').map(without_login).collect::<Vec<_>>().join(" ")
}

fn without_login(word: &str) -> String {
    let at = word.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = word.split_at(at);
    match rest.rsplit_once('@') {
        Some((login, host)) if login.contains(':') => format!("{scheme}***@{host}"),
        _ => word.to_owned(),
    }
}

/// Whether this is a long word of mixed letters and digits, as keys and tokens are.
fn looks_random(word: &str) -> bool {
    let of_keys =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '_' | '-' | '.');
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let letters = word.chars().filter(char::is_ascii_alphabetic).count();
    let slashes = word.chars().filter(|c| *c == '/').count();
    word.len() >= 24 && digits >= 4 && letters >= 4 && slashes < 3 && word.chars().all(of_keys)
}

fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most - 3).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// This user on this host, with the command that runs under the lock: `ada:backup.sh[12]@db-1`. The
/// number is that of this process, which ends the command when it is asked to end.
pub(crate) fn running(command: &OsStr) -> ClientIdentity {
    let command = Path::new(command).file_name().unwrap_or(command).to_string_lossy();
    let program = format!("{}:{command}", user());
    ClientIdentity::of_this_process().with_program(program)
}

/// Whether this is this process, whatever it runs.
pub(crate) fn is_this_process(identity: &ClientIdentity) -> bool {
    let me = ClientIdentity::of_this_process();
    (identity.pid, &identity.host) == (me.pid, &me.host)
}

/// The user's name, or its number where the environment does not tell.
pub(crate) fn user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    match named.filter(|user| !user.is_empty()) {
        Some(user) => user,
        None => format!("uid{}", rustix::process::getuid()),
    }
}

/// Whether an option of that name may have a secret for its value.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    if name.ends_with("_file") {
        return false;
    }
    ["pass", "pwd", "secret", "token", "key", "auth", "cred"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note_of(words: &[&str]) -> String {
        command_line(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_is_shown_without_its_secrets() {
        for (words, expected) in [
            (&["./backup.sh", "--full", "/srv"][..], "./backup.sh --full /srv"),
            (&["x", "--password", "hunter2", "y"], "x --password *** y"),
            (&["x", "--password=hunter2", "API_KEY=abc"], "x --password=*** API_KEY=***"),
            (&["curl", "https://me:hunt/er2@host/a"], "curl https://***@host/a"),
            (&["scp", "me:hunter2@host"], "scp ***@host"),
            (&["sh", "-c", "PGPASSWORD=hunter2 psql -h db"], "sh -c PGPASSWORD=*** psql -h db"),
            (&["sh", "-c", "x --token hunter2 && y"], "sh -c x --token *** && y"),
            (&["deploy", "AKIA1234567890abcdEFGH5678"], "deploy ***"),
            (&["report", "2026-11-21/report"], "report 2026-11-21/report"),
        ] {
            assert_eq!(note_of(words), expected);
        }
    }

    #[test]
    fn a_long_line_is_shortened_between_characters() {
        let note = of_command(&["é".repeat(500).into()]);
        assert!(note.len() <= LONGEST && note.ends_with('…'), "{note}");
        assert!(!of_command(&["a\nb\u{1b}".into()]).contains(char::is_control));
    }
}
