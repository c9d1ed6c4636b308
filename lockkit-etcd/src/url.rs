//! The URL of an etcd cluster, taken apart. No I/O but the reading of certificates.
//!
//! `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/ROOT]`, or `etcds:` for TLS with the options
//! `ca=FILE`, `cert=FILE` and `key=FILE` (both or none), `domain=NAME`.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use lockkit_core::Error;
use lockkit_core::driver::{PemFiles, UrlOption, split_query};
use percent_encoding::percent_decode_str;

const PORT: &str = "2379";
const CONNECT: Duration = Duration::from_secs(2);
/// etcd takes offence at pings more often than every 5 seconds.
const PING: Duration = Duration::from_secs(6);
const SILENCE: Duration = Duration::from_secs(3);

/// Where to connect, and how.
pub(crate) struct Target {
    pub(crate) endpoints: Vec<String>,
    pub(crate) root: String,
    pub(crate) options: ConnectOptions,
}

/// Takes a URL apart.
pub(crate) fn parse(url: &str) -> Result<Target, Error> {
    let (place, query) = split_query(url);
    let (tls, rest) = match place.split_once("://") {
        Some(("etcd", rest)) => (false, rest),
        Some(("etcds", rest)) => (true, rest),
        _ => return Err(wrong("begins with etcd:// or etcds://")),
    };
    // A password may contain anything but must then be percent-encoded, except for '@'.
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(login), rest),
        None => (None, rest),
    };
    let (hosts, root) = rest.split_once('/').unwrap_or((rest, ""));
    let scheme = if tls { "https" } else { "http" };
    let endpoints: Result<Vec<_>, _> =
        hosts.split(',').map(|host| endpoint(scheme, host)).collect();
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(PING, SILENCE)
        .with_keep_alive_while_idle(true)
        // A member that was cut off from the others must not answer or keep silent about watches.
        .with_require_leader(true);
    if let Some(login) = login {
        let (user, password) = login.split_once(':').ok_or_else(|| wrong("has USER:PASSWORD@"))?;
        let (user, password) = (decoded(user)?, decoded(password)?);
        options = options.with_user(user, password).with_auto_token_refresh(true);
    }
    let asked = Tls::of(query)?;
    options = match (tls, asked.is_empty()) {
        (true, _) => options.with_tls(asked.options()?),
        (false, true) => options,
        (false, false) => return Err(wrong("has certificates with etcds:// only")),
    };
    Ok(Target { endpoints: endpoints?, root: decoded(root)?, options })
}

fn endpoint(scheme: &str, host: &str) -> Result<String, Error> {
    let has_port = match host.rsplit_once(']') {
        Some((_, port)) => port.starts_with(':'),
        None => host.contains(':'),
    };
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]%".contains(&b);
    if host.is_empty() || !host.bytes().all(ok) {
        return Err(wrong("has hosts such as a:2379,b:2379"));
    }
    Ok(if has_port { format!("{scheme}://{host}") } else { format!("{scheme}://{host}:{PORT}") })
}

/// The options about TLS.
#[derive(Default)]
struct Tls {
    files: PemFiles,
    domain: Option<String>,
}

impl Tls {
    fn of<'a>(options: impl Iterator<Item = UrlOption<'a>>) -> Result<Self, Error> {
        let mut tls = Self::default();
        for option in options {
            match option.name {
                "domain" => tls.domain = Some(option.decoded()?.into_owned()),
                _ if tls.files.take(&option)? => {}
                other => {
                    return Err(wrong(&format!(
                        "has no option {other:?} (there are ca, cert, key, domain)"
                    )));
                }
            }
        }
        Ok(tls)
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.domain.is_none()
    }

    fn options(self) -> Result<TlsOptions, Error> {
        let (ca, pem) = self.files.read_with_authority()?;
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((cert, key)) = pem.identity {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        if let Some(domain) = self.domain {
            tls = tls.domain_name(domain);
        }
        Ok(tls)
    }
}

fn decoded(text: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| wrong("is UTF-8, percent-encoded"))
}

/// The URL is not shown: it may contain a password.
fn wrong(what: &str) -> Error {
    Error::Config(format!("an etcd URL {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_their_port_and_scheme() {
        let target = parse("etcd://a,b:1,[::1],[::1]:9/my/root").unwrap();
        let expected = ["http://a:2379", "http://b:1", "http://[::1]:2379", "http://[::1]:9"];
        assert_eq!(target.endpoints, expected);
        assert_eq!(target.root, "my/root");
    }

    #[test]
    fn what_cannot_work_is_refused_without_showing_the_password() {
        for bad in [
            "etcd://",
            "etcd://a,,b",
            "http://a",
            "etcd://u@h",
            "etcd://h?ca=/x",
            "etcds://u:secret@h",
            "etcd://u:secret@h h",
            "etcd://h?colour=red",
            "etcds://h?ca=/does/not/exist",
        ] {
            let message = parse(bad).err().map(|e| e.to_string());
            let message = message.unwrap_or_else(|| panic!("{bad} was taken"));
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn a_login_is_decoded() {
        let target = parse("etcd://us%2Fer:p%40ss@h").unwrap();
        assert_eq!(target.endpoints, ["http://h:2379"]);
    }
}
