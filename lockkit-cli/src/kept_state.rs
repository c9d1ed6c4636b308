//! Where commands on a bucket keep what they saw of other clients' sessions: without it, commands that each
//! try once and end find the lock of a dead holder taken for ever.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::exit::ExitError;

/// How the URLs of stores begin.
const BUCKETS: &[&str] = &["s3:", "az:", "gs:", "dynamodb:", "nats:", "nats+tls:"];

/// The URL, with the user's state folder where the backend is a bucket and the URL names no other one.
pub(crate) fn with_folder(url: &str) -> String {
    let is_bucket = BUCKETS.iter().any(|scheme| url.starts_with(scheme));
    if !is_bucket || url.contains("?state=") || url.contains("&state=") {
        return url.to_owned();
    }
    let Some(folder) = folder() else { return url.to_owned() };
    let Some(encoded) = encoded(&folder) else { return url.to_owned() };
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}state={encoded}")
}

/// Why what was kept is ignored, if it is.
pub(crate) fn why_ignored(url: &str) -> Option<String> {
    if !BUCKETS.iter().any(|scheme| url.starts_with(scheme)) {
        return None;
    }
    #[cfg(any(
        feature = "azure",
        feature = "dynamodb",
        feature = "gcs",
        feature = "nats",
        feature = "s3"
    ))]
    {
        lockkit::store::ignored_state(&folder()?)
    }
    #[cfg(not(any(
        feature = "azure",
        feature = "dynamodb",
        feature = "gcs",
        feature = "nats",
        feature = "s3"
    )))]
    {
        None
    }
}

/// The state folder; none in a container that has none of its own: another one may write to the same, and
/// what is kept there must be true.
fn folder() -> Option<PathBuf> {
    let is_own = env::var_os("XDG_STATE_HOME").is_some_and(|folder| !folder.is_empty());
    if !is_own && is_in_container() {
        return None;
    }
    state_folder().ok()
}

/// `$XDG_STATE_HOME/lockkit`, or `~/.local/state/lockkit`. Relative paths do not count, as the XDG
/// base directory specification says.
pub(crate) fn state_folder() -> Result<PathBuf, ExitError> {
    let folder = |name: &str| -> Option<PathBuf> {
        let value: OsString = env::var_os(name)?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            ExitError::usage(
                "there is no place for the lock file: set HOME, or give a backend with --url",
            )
        })?;
    Ok(state.join("lockkit"))
}

fn is_in_container() -> bool {
    let files = ["/.dockerenv", "/run/.containerenv"];
    let variables = ["container", "KUBERNETES_SERVICE_HOST"];
    files.iter().any(|file| Path::new(file).exists())
        || variables.iter().any(|name| env::var_os(name).is_some())
}

/// The path as a query has it; `None` where it is not UTF-8.
fn encoded(path: &Path) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let bytes = path.to_str()?.bytes();
    let encoded = bytes.map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    Some(encoded.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buckets_get_a_folder_and_no_second_one() {
        for url in ["redis://h", "sqlite:/x", "http://h", "s3://b?state=/x", "nats://h/b?state=/x"]
        {
            assert_eq!(with_folder(url), url);
        }
    }

    #[test]
    fn a_folder_is_one_option() {
        let folder = encoded(Path::new("/a b/c&d?e=%f"));
        assert_eq!(folder.as_deref(), Some("/a%20b/c%26d%3Fe%3D%25f"));
    }
}
