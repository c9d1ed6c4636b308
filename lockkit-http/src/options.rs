//! The grammar of the URLs of a lock service.

use std::path::PathBuf;
use std::time::Duration;

use lockkit_core::{Error, parse_duration};

use crate::access::{Certificates, Secret};

/// Where a service is, and how long to wait for its answers.
///
/// ```no_run
/// use lockkit_http::{HttpDriver, HttpOptions, Secret};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let read_from_a_vault = || "s3cr3t";
/// let token = Secret::new(read_from_a_vault());
/// let options = HttpOptions::parse("https://locks.example.net")?.token(token)?;
/// let driver = HttpDriver::connect_with(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    pub(crate) servers: Vec<Server>,
    pub(crate) timeout: Duration,
    /// `None` for plain HTTP.
    pub(crate) tls: Option<Certificates>,
    pub(crate) token: Token,
}

/// Where the bearer token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// There is none.
    None,
    /// In this file, which is read at every connection of a driver.
    File(PathBuf),
    /// Here.
    Given(Secret),
}

/// One server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// `host:port`.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

/// The port of a URL that names none.
pub const PORT: u16 = 7411;

impl HttpOptions {
    /// Reads `http://HOST:PORT,HOST:PORT`, `https://…` or `http+unix:PATH`, with its options. No
    /// I/O: files are read when a driver connects.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (servers, secure) = match place.split_once(':') {
            Some(("http", rest)) => (tcp(rest)?, false),
            Some(("https", rest)) => (tcp(rest)?, true),
            Some(("http+unix", path)) if path.starts_with('/') => {
                (vec![Server::Unix(path.into())], false)
            }
            Some(("http+unix", _)) => {
                return Err(Error::config(
                    "http+unix: wants an absolute path: http+unix:/run/lockkit.sock",
                ));
            }
            _ => {
                return Err(Error::config(
                    "a lock service's URL is http://HOST:7411, https://HOST:7411 or \
                     http+unix:/PATH",
                ));
            }
        };
        let timeout = Duration::from_secs(5);
        let tls = secure.then(Certificates::default);
        let mut options = Self { servers, timeout, tls, token: Token::None };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            options.set(name, value)?;
        }
        options.check()?;
        Ok(options)
    }

    /// Shows this token to the servers.
    ///
    /// # Errors
    /// [`Error::Config`] where it would travel in plain text to another host.
    pub fn token(mut self, token: Secret) -> Result<Self, Error> {
        self.token = Token::Given(token);
        self.check()?;
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let file = || Some(PathBuf::from(value)).filter(|_| !value.is_empty());
        match (name, &mut self.tls) {
            ("timeout", _) => self.timeout = parse_duration(value)?,
            ("token_file", _) => {
                let file = file().ok_or_else(|| Error::config("token_file names a file"))?;
                self.token = Token::File(file);
            }
            ("ca", Some(tls)) => tls.ca = file(),
            ("cert", Some(tls)) => tls.cert = file(),
            ("key", Some(tls)) => tls.key = file(),
            ("ca" | "cert" | "key", None) => {
                return Err(Error::config("certificates need a URL that speaks TLS: https://"));
            }
            ("token", _) => {
                return Err(Error::config(
                    "a token in a URL is seen in process lists: put it into a file, and give \
                     token_file=FILE, or into LOCKKIT_HTTP_TOKEN",
                ));
            }
            _ => {
                let message = format!(
                    "{name} is no option of a lock service (there are: timeout, token_file, and \
                     for https: ca, cert, key)"
                );
                return Err(Error::Config(message));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        if self.timeout < Duration::from_millis(100) || self.timeout > Duration::from_secs(60) {
            return Err(Error::config("the timeout of a lock service is between 100ms and 60s"));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.cert.is_some() != tls.key.is_some()) {
            return Err(Error::config("cert and key belong together"));
        }
        if self.token != Token::None && !self.is_private() {
            return Err(Error::config(
                "a token travels by https:// or within this host only: over http:// to another \
                 host, everybody between could use it",
            ));
        }
        Ok(())
    }

    /// Whether what is sent is encrypted, or stays on this machine.
    pub(crate) fn is_private(&self) -> bool {
        let within = |server: &Server| match server {
            Server::Tcp(authority) => {
                let host = authority.rsplit_once(':').map_or(&**authority, |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let address = host.parse::<std::net::IpAddr>();
                host == "localhost" || address.is_ok_and(|address| address.is_loopback())
            }
            Server::Unix(_) => true,
        };
        self.tls.is_some() || self.servers.iter().all(within)
    }
}

fn tcp(rest: &str) -> Result<Vec<Server>, Error> {
    let hosts = rest.strip_prefix("//").unwrap_or_default().trim_end_matches('/');
    let wrong = |host: &str| {
        Error::Config(format!(
            "{host:?} is no server: use http://HOST:PORT, or several with commas"
        ))
    };
    let server = |host: &str| {
        if host.contains('@') {
            // Before it: a password, perhaps.
            return Err(wrong("…@…"));
        }
        // Parsed as a client will: what is no authority is refused here, before any I/O.
        let authority: hyper::http::uri::Authority = host.parse().map_err(|_| wrong(host))?;
        let port = match host.strip_prefix(authority.host()).ok_or_else(|| wrong(host))? {
            "" => PORT,
            port => {
                port.strip_prefix(':').and_then(|p| p.parse().ok()).ok_or_else(|| wrong(host))?
            }
        };
        match authority.host().is_empty() {
            false => Ok(Server::Tcp(format!("{}:{port}", authority.host()))),
            true => Err(wrong(host)),
        }
    };
    hosts.split(',').map(server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_hosts_and_ports() {
        let tcp = |text: &str| Server::Tcp(text.to_owned());
        let one = HttpOptions::parse("http://locks").unwrap();
        assert_eq!(one.servers, [tcp("locks:7411")]);
        let two = HttpOptions::parse("http://10.0.0.1:80,[::1]/?timeout=1s").unwrap();
        assert_eq!(two.servers, [tcp("10.0.0.1:80"), tcp("[::1]:7411")]);
        assert_eq!(two.timeout, Duration::from_secs(1));
        let unix = HttpOptions::parse("http+unix:/run/lockkit.sock").unwrap();
        assert_eq!(unix.servers, [Server::Unix("/run/lockkit.sock".into())]);
    }

    #[test]
    fn a_token_is_shown_within_the_host_or_over_tls() {
        for good in [
            "https://a,b:1?token_file=/run/token&ca=/ca&cert=/c&key=/k",
            "http://localhost?token_file=x",
            "http://[::1]:1?token_file=x",
            "http+unix:/run/lockkit.sock?token_file=x",
        ] {
            HttpOptions::parse(good).expect(good);
        }
        let with = |url: &str| HttpOptions::parse(url).unwrap().token(Secret::new(" secret\n"));
        with("http://a").expect_err("in plain text to another host");
        assert!(!format!("{:?}", with("https://a").unwrap()).contains("secret"));
        for bad in ["", "two words", "\u{e4}"] {
            Secret::new(bad).header().expect_err(bad);
        }
    }

    #[test]
    fn what_is_no_service_is_refused_before_any_io() {
        for bad in [
            "http://",
            "http:",
            "http://a,",
            "http://a b",
            "http://a:b",
            "http://a:99999",
            "http+unix:x",
            "ftp://a",
            "http://a?tmeout=1s",
            "http://a?timeout=1ms",
            "http://user:secret@host",
            "http://a/path",
            "http://localhost?ca=x",
            "http://a?token_file=x",
            "http://127.0.0.1,10.0.0.1?token_file=x",
            "https://a?cert=x",
            "https://a?token=secret",
            "https://a?token_file=",
        ] {
            let error = HttpOptions::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
