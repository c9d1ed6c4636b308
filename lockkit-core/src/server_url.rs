//! The URL of a backend's servers, taken apart the same way for every driver.

use percent_encoding::percent_decode_str;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::url::{UrlOption, split_query, without_password};
use crate::{Error, Result};

/// A URL of servers: `SCHEME://[LOGIN@]HOST[:PORT],HOST[:PORT]…[/PATH][?OPTION=VALUE&…]`.
///
/// The options `ca`, `cert` and `key`, which name [PEM files](PemFiles), are taken out of the query.
/// No I/O. `Debug` is missing on purpose: the login may contain a password.
///
/// ```
/// # fn main() -> Result<(), lockkit_core::Error> {
/// use lockkit_core::driver::ServerUrl;
///
/// let text = "my://me:p%40ss@a,b:9/root?strict&ca=/etc/ca.pem";
/// let url = ServerUrl::parse(text, "a URL of mine is my://HOST:4711")?;
/// assert_eq!(url.scheme, "my");
/// assert_eq!(url.user_and_password()?, Some(("me".into(), "p@ss".into())));
/// assert_eq!(url.hosts_with_port(4711), ["a:4711", "b:9"]);
/// assert_eq!(url.path, "/root");
/// assert_eq!(url.options[0].name, "strict");
/// assert!(!url.pem_files.is_empty());
/// assert!(!url.error("it is wrong").to_string().contains("p%40ss"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerUrl<'a> {
    /// The text before `://`.
    pub scheme: &'a str,
    /// The text before the last `@`, as it is written; `None` without an `@`.
    pub login: Option<&'a str>,
    /// The servers, each with or without a port; one at least.
    pub hosts: Vec<&'a str>,
    /// The text from the first `/` after the hosts on, as it is written; or nothing.
    pub path: &'a str,
    /// The options of the query, without those that name PEM files.
    pub options: Vec<UrlOption<'a>>,
    /// The PEM files that the query names.
    pub pem_files: PemFiles,
    /// The URL without its password.
    redacted: String,
    form: &'a str,
}

impl<'a> ServerUrl<'a> {
    /// Takes a URL apart. `form` is what the messages of errors end with, such as
    /// `a ZooKeeper URL is zk://HOST:2181,…`.
    ///
    /// # Errors
    /// [`Error::Config`] without a scheme, and for hosts that cannot be hosts. No message of a
    /// `ServerUrl` contains the password.
    pub fn parse(url: &'a str, form: &'a str) -> Result<Self> {
        let redacted = match url.rsplit_once('@') {
            // Without a scheme it is not known where the password begins.
            Some((_, rest)) if !url.contains("://") => format!("***@{rest}"),
            _ => without_password(url),
        };
        let (rest, query) = split_query(url);
        let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
        // The password may itself contain '@': everything up to the last one is the login.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (hosts, options) = (hosts.split(',').collect(), Vec::new());
        let pem_files = PemFiles::default();
        let mut url = Self { scheme, login, hosts, path, options, pem_files, redacted, form };
        if scheme.is_empty() {
            return Err(url.error("it has no scheme before a ://"));
        }
        if !url.hosts.iter().all(|host| is_host(host)) {
            return Err(url.error("it names no server, or one that cannot be"));
        }
        for option in query {
            if !url.pem_files.take(&option)? {
                url.options.push(option);
            }
        }
        Ok(url)
    }

    /// The error of this URL: what is wrong with it, and what it should be like.
    pub fn error(&self, what: &str) -> Error {
        Error::Config(format!("{}: {what}; {}", self.redacted, self.form))
    }

    /// The error for an option that this backend does not have; `known` are those that it has.
    pub fn unknown_option(&self, option: &UrlOption<'_>, known: &str) -> Error {
        self.error(&format!("there is no option {:?} (there are {known})", option.name))
    }

    /// User and password, percent-decoded; `None` without a login.
    pub fn user_and_password(&self) -> Result<Option<(String, String)>> {
        let Some(login) = self.login else { return Ok(None) };
        let missing = || self.error("there is no password behind the user (USER:PASSWORD@)");
        let (user, password) = login.split_once(':').ok_or_else(missing)?;
        Ok(Some((self.decoded(user)?, self.decoded(password)?)))
    }

    /// The servers, each with a port: its own, or this one. An IPv6 address is in brackets.
    pub fn hosts_with_port(&self, port: u16) -> Vec<String> {
        let with_port = |host: &&str| {
            let (_, after) = host.rsplit_once(']').unwrap_or(("", host));
            match after.contains(':') {
                true => (*host).to_owned(),
                false => format!("{host}:{port}"),
            }
        };
        self.hosts.iter().map(with_port).collect()
    }

    /// A part of this URL, percent-decoded.
    pub fn decoded(&self, part: &str) -> Result<String> {
        let decoded = percent_decode_str(part).decode_utf8();
        decoded.map(Into::into).map_err(|_| self.error("it is not UTF-8, percent-encoded"))
    }

    /// Refuses PEM files where the scheme does not speak TLS; `tls_scheme` is the one that does.
    pub fn check_no_pem_files(&self, tls_scheme: &str) -> Result<()> {
        match self.pem_files.is_empty() {
            true => Ok(()),
            false => Err(self.error(&format!("certificates are for {tls_scheme}:// only"))),
        }
    }
}

fn is_host(text: &str) -> bool {
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]%".contains(&b);
    !text.is_empty() && text.bytes().all(ok)
}

/// The files that a URL names.
#[derive(Clone, Debug, Default)]
pub struct PemFiles {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// The contents of the files, which have what they are named for.
#[derive(Clone)]
#[non_exhaustive]
pub struct Pem {
    /// The certificates of the authorities to trust, where the URL names a file of them.
    pub ca: Option<String>,
    /// Client certificate and key for mutual TLS.
    pub identity: Option<(String, String)>,
}

impl PemFiles {
    /// Takes an option of a URL, if it is about these files. Says whether it is.
    pub fn take(&mut self, option: &UrlOption<'_>) -> Result<bool, Error> {
        let file = match option.name {
            "ca" => &mut self.ca,
            "cert" => &mut self.cert,
            "key" => &mut self.key,
            _ => return Ok(false),
        };
        *file = Some(option.decoded()?.into_owned());
        Ok(true)
    }

    /// Whether the URL names none.
    pub fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none() && self.key.is_none()
    }

    /// Reads the files for a client that trusts no authority but those that the URL names: also gives
    /// their certificates by themselves.
    ///
    /// # Errors
    /// [`Error::Config`] without a file of them, before any is read; otherwise as [`read`](Self::read).
    pub fn read_with_authority(&self) -> Result<(String, Pem), Error> {
        let missing = || Error::config("TLS needs the file of the authority: ?ca=FILE");
        let file = self.ca.as_deref().ok_or_else(missing)?;
        Ok((certificates("ca", file)?, self.read()?))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Config`] for a certificate without a key or the other way round, for a file that cannot
    /// be read, and for one without what it is named for: it names the file, and shows nothing of it.
    pub fn read(&self) -> Result<Pem, Error> {
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((certificates("cert", cert)?, private_key(key)?)),
            (None, None) => None,
            _ => return Err(Error::config("cert=FILE and key=FILE belong together")),
        };
        let ca = self.ca.as_deref().map(|file| certificates("ca", file)).transpose()?;
        Ok(Pem { ca, identity })
    }
}

fn read(file: &str) -> Result<String, Error> {
    let bytes = std::fs::read(file)
        .map_err(|error| Error::Config(format!("{file} cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|_| {
        Error::Config(format!(
            "{file} is no text in PEM: convert it (openssl x509 -inform der -in {file})"
        ))
    })
}

/// A text with at least one certificate. Bundles of systems have comments, and some entries that not
/// every reader knows.
fn certificates(option: &str, file: &str) -> Result<String, Error> {
    let text = read(file)?;
    // A DER sequence. What else is wrong with it, the TLS library says when it connects.
    let is_one = |found: Result<CertificateDer<'_>, pem::Error>| {
        found.is_ok_and(|certificate| certificate.first() == Some(&0x30))
    };
    // OpenSSL's own form, with what the certificate is trusted for behind it.
    let trusted = text.contains("BEGIN TRUSTED CERTIFICATE");
    if trusted || CertificateDer::pem_slice_iter(text.as_bytes()).any(is_one) {
        return Ok(text);
    }
    let instead = match text.contains("PRIVATE KEY-----") {
        true => " (it has a private key)",
        false => "",
    };
    let sentence =
        format!("{option}={file} has no certificate in PEM{instead}: name a file that has");
    Err(Error::Config(sentence))
}

fn private_key(file: &str) -> Result<String, Error> {
    let text = read(file)?;
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(Error::Config(format!(
            "the private key in key={file} is encrypted, and there is no way to give its passphrase: \
             decrypt it into a file that only this user can read (openssl pkey -in {file} -out FILE)"
        )));
    }
    match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
        Ok(_) => Ok(text),
        Err(_) => Err(Error::Config(format!(
            "key={file} has no private key in PEM: name a file that has"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ServerUrl<'_>> {
        ServerUrl::parse(url, "one is my://HOST")
    }

    #[test]
    fn hosts_get_the_default_port_unless_they_have_one() {
        let url = parse("my://a,b:1,[::1],[::1]:9").unwrap();
        assert_eq!(url.hosts_with_port(7), ["a:7", "b:1", "[::1]:7", "[::1]:9"]);
        assert_eq!((url.login, url.path, url.options.len()), (None, "", 0));
    }

    #[test]
    fn a_login_may_contain_the_separators_of_the_rest() {
        let url = parse("my://us%2Fer:p@ss:w/ord@h:1/x/y").unwrap();
        let login = Some(("us/er".to_owned(), "p@ss:w/ord".to_owned()));
        assert_eq!(url.user_and_password().unwrap(), login);
        assert_eq!((url.hosts, url.path), (vec!["h:1"], "/x/y"));
    }

    #[test]
    fn pem_files_are_apart_from_the_other_options() {
        let url = parse("my://h?a=1&ca=/x&b").unwrap();
        let names: Vec<_> = url.options.iter().map(|option| option.name).collect();
        assert_eq!(names, ["a", "b"]);
        let error = url.check_no_pem_files("mys").unwrap_err().to_string();
        assert!(error.contains("mys:// only"), "{error}");
        parse("my://h?a=1").unwrap().check_no_pem_files("mys").unwrap();
    }

    #[test]
    fn an_error_shows_the_url_without_its_password_and_the_right_form() {
        for (bad, why) in [
            ("u:secret@h", "no scheme"),
            ("my://", "names no server"),
            ("my://u:secret@", "names no server"),
            ("my://u:secret@a,,b", "names no server"),
            ("my://u:secret@h h", "names no server"),
        ] {
            let error = parse(bad).err().expect(bad).to_string();
            assert!(error.contains(why) && error.contains("my://HOST"), "{bad}: {error}");
            assert!(!error.contains("secret") || !bad.contains("://"), "{bad}: {error}");
        }
        let url = parse("my://user@h?colour=red").unwrap();
        assert!(url.user_and_password().unwrap_err().to_string().contains("no password"));
        let unknown = url.unknown_option(&url.options[0], "size, shape").to_string();
        assert!(unknown.contains("\"colour\"") && unknown.contains("size, shape"), "{unknown}");
        let url = parse("my://u:secret%ff@h").unwrap();
        let error = url.user_and_password().unwrap_err().to_string();
        assert!(error.contains("not UTF-8") && !error.contains("secret"), "{error}");
    }

    fn files(url: &str) -> PemFiles {
        let mut files = PemFiles::default();
        for option in split_query(url).1 {
            assert!(files.take(&option).unwrap() || option.name == "other", "{}", option.name);
        }
        files
    }

    #[test]
    fn certificates_that_cannot_work_are_refused_with_the_reason() {
        assert!(files("x://h?other=1").is_empty());
        for (query, why) in [
            ("ca=/x&cert=/y", "belong together"),
            ("ca=/x&key=/y", "belong together"),
            ("ca=/does%2Fnot/exist", "/does/not/exist cannot be read"),
        ] {
            let files = files(&format!("x://h?{query}"));
            assert!(!files.is_empty());
            let message = files.read().err().unwrap().to_string();
            assert!(message.contains(why), "{query}: {message}");
        }
    }
    /// A certificate in form; the key is 48 bytes that are none, which only TLS would notice.
    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMAMCAQE=\n-----END PRIVATE KEY-----\n";

    #[test]
    fn a_url_without_a_scheme_shows_no_password_either() {
        let error = ServerUrl::parse("redis:secret@host", "a form").err().unwrap().to_string();
        assert!(!error.contains("secret") && error.contains("***@host"), "{error}");
    }

    #[test]
    fn files_without_what_they_are_named_for_are_refused_and_not_shown() {
        let folder = std::env::temp_dir().join(format!("lockkit-pem-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, text: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (cert, key) = (file("cert", CERTIFICATE.as_bytes()), file("key", KEY.as_bytes()));
        let text = file("text", b"hunter2");
        let binary = file("binary", &[0x30, 0x82, 0xff]);
        let encrypted = file("encrypted", KEY.replace("PRIVATE", "ENCRYPTED PRIVATE").as_bytes());
        let both = file("both", format!("{KEY}{CERTIFICATE}").as_bytes());
        let malformed =
            "# Our bundle\r\n-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        let bundle = file("bundle", format!("{malformed}\r\n{CERTIFICATE}").as_bytes());
        let broken = file("broken", malformed.as_bytes());
        let read = |query: String| files(&format!("x://h?{query}")).read();
        for good in [
            format!("ca={cert}"),
            format!("ca={bundle}&cert={cert}&key={key}"),
            format!("cert={both}&key={both}"),
        ] {
            assert!(read(good.clone()).is_ok(), "{good}: {:?}", read(good.clone()).err());
        }
        for (query, why) in [
            (format!("ca={text}"), "has no certificate in PEM: "),
            (format!("ca={broken}"), "has no certificate in PEM: "),
            (format!("ca={key}"), "(it has a private key)"),
            (format!("ca={binary}"), "is no text in PEM"),
            (format!("cert={key}&key={key}"), "has no certificate"),
            (format!("cert={cert}&key={cert}"), "has no private key"),
            (format!("cert={cert}&key={encrypted}"), "is encrypted"),
        ] {
            let message = read(query.clone()).err().unwrap().to_string();
            assert!(message.contains(why) && !message.contains("hunter2"), "{query}: {message}");
        }
        assert!(files("x://h").read_with_authority().is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
