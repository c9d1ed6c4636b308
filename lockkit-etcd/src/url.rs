//! The URL of an etcd cluster, taken apart. No I/O but the reading of certificates.
//!
//! `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/ROOT]`, or `etcds:` for TLS with the options
//! `ca=FILE`, `cert=FILE` and `key=FILE` (both or none), `domain=NAME`.

use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use lockkit_core::Result;
use lockkit_core::driver::{PemFiles, ServerUrl};

const PORT: u16 = 2379;
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

const FORM: &str =
    "an etcd URL is etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/ROOT], or etcds:// for TLS";

/// Takes a URL apart.
pub(crate) fn parse(url: &str) -> Result<Target> {
    let url = ServerUrl::parse(url, FORM)?;
    let scheme = match url.scheme {
        "etcd" => "http",
        "etcds" => "https",
        _ => return Err(url.error("it begins with neither etcd:// nor etcds://")),
    };
    let endpoints = url.hosts_with_port(PORT).into_iter();
    let endpoints = endpoints.map(|host| format!("{scheme}://{host}")).collect();
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(PING, SILENCE)
        .with_keep_alive_while_idle(true)
        // A member that was cut off from the others must not answer or keep silent about watches.
        .with_require_leader(true);
    if let Some((user, password)) = url.user_and_password()? {
        options = options.with_user(user, password).with_auto_token_refresh(true);
    }
    let mut domain = None;
    for option in &url.options {
        match option.name {
            "domain" => domain = Some(option.decoded()?.into_owned()),
            _ => return Err(url.unknown_option(option, "ca, cert, key, domain")),
        }
    }
    if url.scheme == "etcds" {
        options = options.with_tls(tls(&url.pem_files, domain)?);
    } else {
        url.check_no_pem_files("etcds")?;
        if domain.is_some() {
            return Err(url.error("a domain is for etcds:// only"));
        }
    }
    let root = url.decoded(url.path.strip_prefix('/').unwrap_or_default())?;
    Ok(Target { endpoints, root, options })
}

fn tls(files: &PemFiles, domain: Option<String>) -> Result<TlsOptions> {
    let (ca, pem) = files.read_with_authority()?;
    let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(ca));
    if let Some((cert, key)) = pem.identity {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    if let Some(domain) = domain {
        tls = tls.domain_name(domain);
    }
    Ok(tls)
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
