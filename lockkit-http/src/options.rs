//! The grammar of the URLs of a lock service.

use std::path::PathBuf;
use std::time::Duration;

use lockkit_core::{Error, parse_duration};

/// Where a service is, and how long to wait for its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    pub(crate) servers: Vec<Server>,
    pub(crate) timeout: Duration,
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
    /// Reads `http://HOST:PORT,HOST:PORT` or `http+unix:PATH`, with `?timeout=5s`. No I/O.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let servers = match place.split_once(':') {
            Some(("http", rest)) => tcp(rest)?,
            Some(("http+unix", path)) if path.starts_with('/') => vec![Server::Unix(path.into())],
            Some(("http+unix", _)) => {
                return Err(Error::config(
                    "http+unix: wants an absolute path: http+unix:/run/lockkit.sock",
                ));
            }
            _ => {
                return Err(Error::config(
                    "a lock service's URL is http://HOST:7411 or http+unix:/PATH",
                ));
            }
        };
        let mut timeout = Duration::from_secs(5);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("timeout", value)) => timeout = parse_duration(value)?,
                _ => {
                    let name = option.split_once('=').map_or(option, |(name, _)| name);
                    let message =
                        format!("{name} is no option of a lock service (there is: timeout)");
                    return Err(Error::Config(message));
                }
            }
        }
        if timeout < Duration::from_millis(100) || timeout > Duration::from_secs(60) {
            return Err(Error::config("the timeout of a lock service is between 100ms and 60s"));
        }
        Ok(Self { servers, timeout })
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
        // Parsed as a client will: what is no authority is refused here, before any I/O.
        let authority: hyper::http::uri::Authority = host.parse().map_err(|_| wrong(host))?;
        let plain = !host.contains('@') && !authority.host().is_empty();
        let port = match host.strip_prefix(authority.host()).ok_or_else(|| wrong(host))? {
            "" => PORT,
            port => {
                port.strip_prefix(':').and_then(|p| p.parse().ok()).ok_or_else(|| wrong(host))?
            }
        };
        match plain {
            true => Ok(Server::Tcp(format!("{}:{port}", authority.host()))),
            false => Err(wrong("…@…")),
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
        ] {
            let error = HttpOptions::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
