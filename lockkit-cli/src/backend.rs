//! Which backend: the choice of the URL and the namespace, what a command under a lock gets of
//! them, and the connection. The grammar of URLs is the library's.

use std::env;
use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit::{BackendUrl, Error, LockManager, Namespace, Settings};

use crate::advice;
use crate::args::BackendArgs;
use crate::exit::{Ending, ExitError, code};
use crate::kept_state;
use crate::note;
use crate::output;
use crate::run::held::{self, Held};

const URL: &str = "LOCKKIT_URL";
const URL_FILE: &str = "LOCKKIT_URL_FILE";
const NAMESPACE: &str = "LOCKKIT_NAMESPACE";

/// A backend that was chosen, not yet touched.
#[derive(Debug)]
pub(crate) struct Backend {
    url: BackendUrl,
    /// The URL, without lockkit's options but for the ttls.
    text: String,
    origin: Origin,
    settings: Settings,
}

/// Where a URL came from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// The command line, or the lock that this runs under.
    Told,
    /// `LOCKKIT_URL`.
    Variable,
    /// The file that `LOCKKIT_URL_FILE` names.
    File(PathBuf),
    /// The user's own file: its folder, to be made first, and what to say about the choice.
    Default(PathBuf, Option<String>),
}

impl Backend {
    /// Chooses by option, environment, the lock that this runs under, and default, in this order.
    /// Touches nothing.
    pub(crate) fn choose(args: &BackendArgs) -> Result<Self, ExitError> {
        match (&args.url, args.local) {
            (Some(_), true) => {
                Err(ExitError::usage("--local and --url exclude each other: use one"))
            }
            (Some(url), false) => Self::at(url, "--url", Origin::Told, args),
            (None, true) => Self::in_state_folder(args, None),
            (None, false) => Self::of_the_environment(args),
        }
    }

    fn of_the_environment(args: &BackendArgs) -> Result<Self, ExitError> {
        if let Some(url) = variable(URL)? {
            return Self::at(&url, URL, Origin::Variable, args);
        }
        if let Some(file) = variable(URL_FILE)? {
            let text = std::fs::read_to_string(&file).map_err(|e| {
                ExitError::usage(format!(
                    "cannot read the URL from {file:?}, which {URL_FILE} names: {e}"
                ))
            })?;
            let path = std::path::absolute(&file).unwrap_or(file.into());
            let origin = Origin::File(path);
            return Self::at(text.trim(), "the file that LOCKKIT_URL_FILE names", origin, args);
        }
        match held::held().pop() {
            Some(held) => Self::of_the_lock(&held, args),
            None => Self::in_state_folder(args, Some("--local says that this is meant")),
        }
    }

    /// The backend of the lock that this runs under.
    pub(crate) fn of_the_lock(held: &Held, args: &BackendArgs) -> Result<Self, ExitError> {
        if held.hidden {
            return Err(ExitError::usage(format!(
                "this runs under a lock in {}, whose URL contains a secret that is not handed on: \
                 give it with LOCKKIT_URL or LOCKKIT_URL_FILE instead of --url",
                held.backend
            )));
        }
        let namespace = args.namespace.clone().or_else(|| Some(held.namespace.clone()));
        let args = BackendArgs { namespace, ..args.clone() };
        Self::at(&held.backend, "LOCKKIT_HELD", Origin::Told, &args)
    }

    /// The backend of this URL, beside the one that these options choose.
    pub(crate) fn beside(args: &BackendArgs, url: &str, origin: &str) -> Result<Self, ExitError> {
        Self::at(url, origin, Origin::Told, args)
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        timeout_of(&self.text)
    }

    /// A backend that is compared: one in memory too, which no other process reaches either.
    #[cfg(feature = "compare")]
    pub(crate) fn compared(url: &str) -> Result<Self, ExitError> {
        Self::parsed(url, "the arguments", Origin::Told, &BackendArgs::default())
    }

    fn at(text: &str, source: &str, origin: Origin, args: &BackendArgs) -> Result<Self, ExitError> {
        let chosen = Self::parsed(text, source, origin, args)?;
        refuse_memory(chosen.url.rest())?;
        Ok(chosen)
    }

    fn parsed(
        text: &str,
        source: &str,
        origin: Origin,
        args: &BackendArgs,
    ) -> Result<Self, ExitError> {
        let text = absolute(text);
        let url = BackendUrl::parse(&text)
            .map_err(|e| ExitError::usage(format!("the backend's URL in {source}: {e}")))?;
        refuse_what_is_not_compiled_in(url.rest())?;
        let mut settings = url.settings().clone();
        let in_url = option(&text, "namespace").is_some();
        if let Some(namespace) = &args.namespace {
            settings = settings.namespace(namespace);
        } else if let Some(namespace) =
            namespace_variable()?.filter(|_| origin != Origin::Told || !in_url)
        {
            settings = settings.namespace(namespace);
        }
        let settings = settings.identity(note::running(OsStr::new("lockkit")));
        // Before anything is touched: the library looks at it after it has connected.
        Namespace::new(settings.namespace_str())?;
        Ok(Self { text: without_namespace(&text), url, origin, settings })
    }

    fn in_state_folder(args: &BackendArgs, hint: Option<&str>) -> Result<Self, ExitError> {
        if cfg!(not(feature = "sqlite")) {
            return Err(ExitError::usage(
                "this lockkit was built without SQLite: give a backend with --url or LOCKKIT_URL",
            ));
        }
        let folder = kept_state::state_folder()?;
        let file = folder.join("locks.db");
        let shown = file.display();
        let remark = hint.map(|hint| {
            format!("using {shown}, which reaches this user on this host only ({hint})")
        });
        let text = format!("sqlite:{}", encoded(&file)?);
        Self::at(&text, "the default", Origin::Default(folder, remark), args)
    }

    /// Taking locks for this command: others see its name.
    pub(crate) fn for_command(mut self, command: &OsStr) -> Self {
        self.settings = self.settings.identity(note::running(command));
        self
    }

    /// With this ttl instead of the default, where the backend keeps one for all claims.
    pub(crate) fn ttl_or_default(mut self, ttl: Option<Duration>) -> Self {
        if let Some(ttl) = ttl {
            self.settings = self.settings.ttl(ttl);
        }
        self
    }

    /// The lease that the options or the URL ask for, or the library's default.
    pub(crate) fn ttl(&self) -> Duration {
        self.settings.default_ttl()
    }

    /// The URL as it may be shown: without passwords.
    pub(crate) fn url_without_passwords(&self) -> String {
        without_passwords(&self.url).0
    }

    /// Whether what may be shown is less than the URL.
    pub(crate) fn hides_something(&self) -> bool {
        without_passwords(&self.url).1
    }

    /// The namespace that names get.
    pub(crate) fn namespace(&self) -> &str {
        self.settings.namespace_str()
    }

    /// The variables by which a command chooses the same backend and namespace; `None` for those that
    /// it must not have. A secret of the command line is not handed on: environments end up in logs.
    pub(crate) fn handed_on(&self) -> Vec<(&'static str, Option<String>)> {
        let mut variables = vec![(NAMESPACE, Some(self.namespace().to_owned()))];
        match &self.origin {
            Origin::File(path) => {
                let file = path.to_str().map(str::to_owned);
                variables.extend([(URL, None), (URL_FILE, file)]);
            }
            Origin::Variable => variables.push((URL, Some(self.text.clone()))),
            Origin::Told | Origin::Default(..) => {
                let text = (!self.hides_something()).then(|| self.text.clone());
                variables.extend([(URL, text), (URL_FILE, None)]);
            }
        }
        variables
    }

    /// Hands a URL with a secret on in a file of this folder that only the user can read, instead of
    /// a variable: what a script evaluates ends up in traces.
    pub(crate) fn hand_on_by_file(&mut self, folder: &Path) -> Result<(), ExitError> {
        if !self.hides_something() {
            return Ok(());
        }
        let path = folder.join("url");
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(self.text.as_bytes()));
        written.map_err(|e| ExitError::os(&format!("cannot write {}", path.display()), e))?;
        self.origin = Origin::File(path);
        Ok(())
    }

    /// Connects, making the state folder if that is what was chosen.
    pub(crate) async fn connect(&self) -> Result<LockManager, ExitError> {
        if let Origin::Default(folder, remark) = &self.origin {
            // 0700, as the XDG base directory specification asks for.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|e| {
                let folder = folder.display();
                let hint = "make it writable, or give a backend with --url";
                let sentence = format!("cannot make the folder {folder}: {e}; {hint}");
                ExitError::new(code::UNAVAILABLE, sentence)
            })?;
            if let Some(remark) = remark {
                output::note(remark);
            }
        }
        if let Some(why) = kept_state::why_ignored(self.url.rest()) {
            output::note(why);
        }
        self.connect_again().await.map_err(|error| {
            let mut failure = ExitError::from(error);
            if let (true, Some(sentence)) = (failure.is_of_the_backend(), &mut failure.sentence) {
                let advice = advice::on_connecting(self.url.rest(), sentence);
                sentence.push_str(advice);
            }
            failure.at("connecting to", self)
        })
    }

    /// A sentence with the name that the URL has for its backend: MariaDB has the driver of MySQL.
    pub(crate) fn named(&self, sentence: &str) -> String {
        match self.url.scheme() {
            "mariadb" => sentence.replace("mysql: ", "mariadb: "),
            _ => sentence.to_owned(),
        }
    }

    /// The backends that this one is made of; its own where it is one.
    pub(crate) fn members(&self) -> Result<Vec<Self>, ExitError> {
        let member = |url: String| {
            let url = BackendUrl::parse(&url)?;
            let (origin, settings) = (Origin::Told, self.settings());
            Ok(Self { text: String::new(), url, origin, settings })
        };
        lockkit::members(self.url.rest()).into_iter().map(member).collect()
    }

    /// One more connection, without a remark about the choice.
    pub(crate) async fn connect_again(&self) -> Result<LockManager, Error> {
        lockkit::connect_with(&kept_state::with_folder(self.url.rest()), self.settings()).await
    }

    /// The URL without lockkit's options. **Contains the password.**
    pub(crate) fn url(&self) -> &BackendUrl {
        &self.url
    }

    /// The statements that make its tables.
    pub(crate) fn schema(&self) -> Result<String, ExitError> {
        Ok(lockkit::schema(self.url.rest())?)
    }

    /// What the URL and the options say.
    pub(crate) fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

/// The URL without its passwords, and whether there were any. Options of drivers are shown, since
/// they may say where the locks are (`tables`), but for those that a secret may stand in.
fn without_passwords(url: &BackendUrl) -> (String, bool) {
    let rest = url.rest();
    if matches!(url.scheme(), "sqlite" | "memory") {
        return (rest.to_owned(), false);
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut text = url.to_string();
    let mut hides = text != place;
    for (at, option) in query.split('&').filter(|option| !option.is_empty()).enumerate() {
        let name = option.split('=').next().unwrap_or_default();
        let secret = note::is_secret(name);
        hides |= secret;
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(&if secret { format!("{name}=***") } else { option.to_owned() });
    }
    (text, hides)
}

/// A memory is that of one process: no other process would ever find the lock.
fn refuse_memory(rest: &str) -> Result<(), ExitError> {
    let inner = rest.strip_prefix("quorum:").or_else(|| rest.strip_prefix("mirror:"));
    let members = inner.unwrap_or(rest).split(',');
    match members.into_iter().any(|member| member.to_ascii_lowercase().starts_with("memory:")) {
        false => Ok(()),
        true => Err(ExitError::usage(
            "memory: is the memory of one process and ends with it, so it would protect nothing: \
             use --local, sqlite:PATH or a server",
        )),
    }
}

/// Says how to get a lockkit that knows the backend.
fn refuse_what_is_not_compiled_in(rest: &str) -> Result<(), ExitError> {
    match lockkit::missing_feature(rest) {
        None => Ok(()),
        Some(feature) => Err(ExitError::usage(format!(
            "this lockkit was built without {feature}: in a clone of its repository, run \
             cargo install --path lockkit-cli --features {feature}"
        ))),
    }
}

/// A variable of the environment. One that is set to nothing is most likely a secret that did not
/// arrive: to take it for unset would lock something else than was meant.
fn variable(name: &str) -> Result<Option<String>, ExitError> {
    match text_of(name)? {
        Some(value) if value.trim().is_empty() => {
            Err(ExitError::usage(format!("{name} is set but empty: give it a value or unset it")))
        }
        value => Ok(value),
    }
}

/// `LOCKKIT_NAMESPACE`, where it decides; set to nothing, it says that there is none.
fn namespace_variable() -> Result<Option<String>, ExitError> {
    text_of(NAMESPACE)
}

fn text_of(name: &str) -> Result<Option<String>, ExitError> {
    match env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => {
            Err(ExitError::usage(format!("{name} is not UTF-8: correct it")))
        }
    }
}

/// How long a request may take at the backend of this URL: its option, or the default of its driver.
fn timeout_of(url: &str) -> Duration {
    let asked = option(url, "timeout").and_then(|asked| lockkit::parse_duration(asked).ok());
    let default = if url.starts_with("redis") { 2 } else { 5 };
    asked.unwrap_or(Duration::from_secs(default))
}

/// The value of an option in a URL's query, as it is written.
pub(crate) fn option<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

/// The URL without its namespace, which is handed on in a variable of its own.
fn without_namespace(url: &str) -> String {
    let Some((place, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let others: Vec<_> =
        query.split('&').filter(|option| !option.starts_with("namespace=")).collect();
    match others.is_empty() {
        true => place.to_owned(),
        false => format!("{place}?{}", others.join("&")),
    }
}

/// The path as a URL has it.
fn encoded(path: &Path) -> Result<String, ExitError> {
    let text = path.to_str().ok_or_else(|| {
        let path = path.display();
        ExitError::usage(format!("the path {path} is not UTF-8: give one with --url"))
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
impl ExitError {
    /// A failure of this backend says which one it is, and what was being done; once.
    pub(crate) fn at(mut self, doing: &str, backend: &Backend) -> Self {
        if let Some(sentence) = &mut self.sentence
            && self.ending == Ending::Code(code::UNAVAILABLE)
            && !self.is_located
        {
            *sentence = format!(
                "while {doing} {}: {}",
                backend.url_without_passwords(),
                backend.named(sentence)
            );
            self.is_located = true;
        }
        self
    }
}
