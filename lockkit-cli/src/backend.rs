//! Which backend: the choice of the URL, and the connection. The grammar of URLs is the library's.

use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit::{BackendUrl, LockManager, Namespace, Settings};

use crate::args::BackendArgs;
use crate::exit::{Failure, code};
use crate::output;

/// A backend that was chosen, not yet touched.
#[derive(Debug)]
pub(crate) struct Backend {
    url: BackendUrl,
    prefix: Option<String>,
    /// The folder to make first: only lockkit's own state folder.
    folder: Option<PathBuf>,
    /// What to say about the choice, once it is used.
    remark: Option<String>,
}

impl Backend {
    /// Chooses by option, environment and default, in this order. Touches nothing.
    pub(crate) fn choose(args: &BackendArgs) -> Result<Self, Failure> {
        if args.local {
            return Self::in_state_folder(args, None);
        }
        if let Some(url) = &args.url {
            return Self::at(url, "--url", args);
        }
        if let Some(url) = variable("LOCKKIT_URL")? {
            return Self::at(&url, "LOCKKIT_URL", args);
        }
        if let Some(file) = variable("LOCKKIT_URL_FILE")? {
            let text = std::fs::read_to_string(&file).map_err(|e| {
                Failure::usage(format!(
                    "cannot read the URL from {file:?}, which LOCKKIT_URL_FILE names: {e}"
                ))
            })?;
            return Self::at(text.trim(), "the file that LOCKKIT_URL_FILE names", args);
        }
        Self::in_state_folder(args, Some("--local says that this is meant"))
    }

    /// The backend of this very URL, for `check`.
    pub(crate) fn exactly(url: &str, prefix: &str) -> Result<Self, Failure> {
        let args = BackendArgs { url: None, local: false, prefix: Some(prefix.to_owned()) };
        Self::at(url, "LOCKKIT_HELD", &args)
    }

    /// The backend of this URL, beside the one that these options choose.
    pub(crate) fn beside(args: &BackendArgs, url: &str, origin: &str) -> Result<Self, Failure> {
        Self::at(url, origin, args)
    }

    fn at(text: &str, origin: &str, args: &BackendArgs) -> Result<Self, Failure> {
        let text = absolute(text);
        let url = BackendUrl::parse(&text)
            .map_err(|e| Failure::usage(format!("the backend's URL in {origin}: {e}")))?;
        let backend = Self { url, prefix: args.prefix.clone(), folder: None, remark: None };
        // Before anything is touched: the library looks at it after it has connected.
        Namespace::new(backend.prefix())?;
        Ok(backend)
    }

    fn in_state_folder(args: &BackendArgs, hint: Option<&str>) -> Result<Self, Failure> {
        if cfg!(not(feature = "sqlite")) {
            return Err(Failure::usage(
                "this lockkit was built without SQLite: give a backend with --url or LOCKKIT_URL",
            ));
        }
        let folder = state_folder()?;
        let file = folder.join("locks.db");
        let shown = file.display();
        let remark = hint.map(|hint| {
            format!("using {shown}, which reaches this user on this host only ({hint})")
        });
        let text = format!("sqlite:{}", encoded(&file)?);
        let mut backend = Self::at(&text, "the default", args)?;
        backend.folder = Some(folder);
        backend.remark = remark;
        Ok(backend)
    }

    /// The lease that the URL asks for, or the library's default.
    pub(crate) fn ttl(&self) -> Duration {
        self.url.settings().default_ttl()
    }

    /// The URL as it may be shown.
    pub(crate) fn shown(&self) -> String {
        match self.url.scheme() {
            // Nothing in it is secret, not even the query.
            "sqlite" | "memory" => self.url.rest().to_owned(),
            _ => self.url.to_string(),
        }
    }

    /// Whether what may be shown is less than the URL.
    pub(crate) fn hides_something(&self) -> bool {
        self.shown() != self.url.rest()
    }

    /// The prefix that names get.
    pub(crate) fn prefix(&self) -> &str {
        match &self.prefix {
            Some(prefix) => prefix,
            None => self.url.settings().prefix_str(),
        }
    }

    /// Connects, making the state folder if that is what was chosen.
    pub(crate) async fn connect(&self) -> Result<LockManager, Failure> {
        if let Some(folder) = &self.folder {
            // 0700, as the XDG base directory specification asks for.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|e| {
                let folder = folder.display();
                let hint = "make it writable, or give a backend with --url";
                let sentence = format!("cannot make the folder {folder}: {e}; {hint}");
                Failure::new(code::UNAVAILABLE, sentence)
            })?;
        }
        if let Some(remark) = &self.remark {
            output::note(remark);
        }
        Ok(lockkit::connect_with(self.url.rest(), self.settings()).await?)
    }

    /// The statements that make its tables.
    pub(crate) fn schema(&self) -> Result<String, Failure> {
        Ok(lockkit::schema(self.url.rest())?)
    }

    /// What the URL and the options say.
    pub(crate) fn settings(&self) -> Settings {
        let settings = self.url.settings().clone();
        match &self.prefix {
            Some(prefix) => settings.prefix(prefix),
            None => settings,
        }
    }
}

/// A variable of the environment. One that is set to nothing is most likely a secret that did not
/// arrive: to take it for unset would lock something else than was meant.
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) if value.trim().is_empty() => {
            Err(Failure::usage(format!("{name} is set but empty: give it a value or unset it")))
        }
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("{name} is not UTF-8: correct it")))
        }
    }
}

/// `$XDG_STATE_HOME/lockkit`, or `~/.local/state/lockkit`. Relative paths do not count, as the XDG
/// base directory specification says.
fn state_folder() -> Result<PathBuf, Failure> {
    let folder = |name: &str| -> Option<PathBuf> {
        let value: OsString = env::var_os(name)?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    let state = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            Failure::usage(
                "there is no place for the lock file: set HOME, or give a backend with --url",
            )
        })?;
    Ok(state.join("lockkit"))
}

/// The path as it stands in a URL.
fn encoded(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().ok_or_else(|| {
        let path = path.display();
        Failure::usage(format!("the path {path} is not UTF-8: give one with --url"))
    })?;
    let mut encoded = String::new();
    for c in text.chars() {
        match c {
            '%' => encoded.push_str("%25"),
            '?' => encoded.push_str("%3F"),
            '#' => encoded.push_str("%23"),
            c => encoded.push(c),
        }
    }
    Ok(encoded)
}

/// The URL with a relative SQLite path made absolute, so that a command that changes its folder
/// still means the same file.
fn absolute(url: &str) -> String {
    let Some(path) = url.strip_prefix("sqlite:") else {
        return url.to_owned();
    };
    match (path.starts_with(['/', '?']) || path.is_empty(), env::current_dir()) {
        (false, Ok(here)) => match encoded(&here) {
            Ok(here) => format!("sqlite:{here}/{path}"),
            Err(_) => url.to_owned(),
        },
        _ => url.to_owned(),
    }
}
