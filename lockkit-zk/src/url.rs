//! The URL of an ensemble, taken apart. No I/O but the reading of certificates.

use lockkit_core::Result;
use lockkit_core::driver::ServerUrl;

use crate::ZkOptions;
use crate::paths::Neighbours;

const FORM: &str = "a ZooKeeper URL is zk://[user:password@]host:port,host:port[/chroot][?ttl=30s], or zks:// for TLS";

impl ZkOptions {
    /// Reads `zk://[user:password@]host:port,host:port[/chroot][?ttl=30s&tick=2s&…]`, or `zks://`
    /// for TLS, which needs the cargo feature `tls`. User and password are percent-encoded.
    ///
    /// | option | |
    /// | --- | --- |
    /// | `ttl`, `session_timeout`, `tick` | see the [methods](Self::ttl) of these names |
    /// | `neighbours` | `curator` or `kazoo`, see [`neighbours`](Self::neighbours) |
    /// | `login` | `digest`, as without it ([`login`](Self::login)), or `sasl` ([`sasl_login`](Self::sasl_login)) |
    /// | `ca=FILE` | in PEM: whose certificates to trust; `zks:` needs it |
    /// | `cert=FILE`, `key=FILE` | in PEM, both or none: this client's certificate for mutual TLS |
    ///
    /// # Errors
    /// [`Error::Config`](lockkit_core::Error::Config), without the password.
    pub fn parse(url: &str) -> Result<Self> {
        let url = ServerUrl::parse(url, FORM)?;
        let secure = match url.scheme {
            "zk" => false,
            "zks" => true,
            _ => return Err(url.error("it begins with neither zk:// nor zks://")),
        };
        let mut options = Self::new(url.hosts.join(","));
        if !matches!(url.path, "" | "/") {
            options = options.chroot(url.path)?;
        }
        let mut sasl = None;
        for option in &url.options {
            match option.name {
                "ttl" => options.ttl = option.duration()?,
                "session_timeout" => options.session_timeout = Some(option.duration()?),
                "tick" => options.tick = option.duration()?,
                "neighbours" => {
                    let known = [("curator", Neighbours::Curator), ("kazoo", Neighbours::Kazoo)];
                    options.neighbours = Some(option.choice(&known)?);
                }
                "login" => sasl = Some(option.choice(&[("digest", false), ("sasl", true)])?),
                _ => {
                    let known = "ttl, session_timeout, tick, neighbours, login, ca, cert, key";
                    return Err(url.unknown_option(option, known));
                }
            }
        }
        options = match (url.user_and_password()?, sasl) {
            (Some((user, password)), Some(true)) => options.sasl_login(&user, &password),
            (Some((user, password)), _) => options.login(&user, &password),
            (None, Some(_)) => {
                return Err(url.error("it has no user and password to log in with"));
            }
            (None, None) => options,
        };
        match secure {
            true => with_tls(options, &url),
            false => url.check_no_pem_files("zks").map(|()| options),
        }
    }
}

#[cfg(feature = "tls")]
fn with_tls(options: ZkOptions, url: &ServerUrl<'_>) -> Result<ZkOptions> {
    let (ca, pem) = url.pem_files.read_with_authority()?;
    let tls = zookeeper_client::TlsOptions::new().with_pem_ca(&ca);
    let mut tls = tls.map_err(|e| url.error(&format!("ca: {e}")))?;
    if let Some((cert, key)) = pem.identity {
        let with_identity = tls.with_pem_identity(&cert, &key);
        tls = with_identity.map_err(|e| url.error(&format!("cert, key: {e}")))?;
    }
    Ok(options.tls(tls))
}

#[cfg(not(feature = "tls"))]
fn with_tls(_: ZkOptions, url: &ServerUrl<'_>) -> Result<ZkOptions> {
    Err(url.error(
        "zks:// needs the cargo feature \"tls\" of lockkit-zk (\"zookeeper-tls\" of lockkit), \
         which is not compiled in",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_url_names_servers_chroot_login_and_times() {
        for login in ["", "&login=digest", "&login=sasl"] {
            let url = format!("zk://me:se%40@c@a:1,b:2/apps/shop?ttl=12s&tick=500ms{login}");
            let options = ZkOptions::parse(&url).unwrap();
            assert_eq!((&*options.hosts, &*options.chroot), ("a:1,b:2", "/apps/shop"));
            assert_eq!(options.ttl, Duration::from_secs(12));
            assert!(options.private && !options.tls);
            assert!(!format!("{options:?}").contains("se"));
        }
        let plain = ZkOptions::parse("zk://a:1/").unwrap();
        assert_eq!((&*plain.chroot, plain.private), ("", false));
    }

    #[test]
    fn what_cannot_be_is_refused_without_the_password() {
        for (bad, why) in [
            ("zk://", "names no server"),
            ("zk://me:secret@", "names no server"),
            ("zkx://me:secret@a", "neither zk:// nor zks://"),
            ("zk://a/b//c", "no chroot"),
            ("zk://a/../b", "no chroot"),
            ("zk://me@a", "no password"),
            ("zk://a?x=1", "no option \"x\""),
            ("zk://a?neighbours=us", "one of curator, kazoo"),
            ("zk://me:secret@a?login=kerberos", "one of digest, sasl"),
            ("zk://a?login=sasl", "no user and password"),
            ("zk://me:secret%ff@a?login=sasl", "not UTF-8"),
            ("zk://me:secret@a?ca=/x", "for zks:// only"),
            ("zk://me:secret@a?cert=/x&key=/y", "for zks:// only"),
            ("zks://me:secret@a", "?ca=FILE"),
            ("zks://me:secret@a?cert=/x&key=/y", "?ca=FILE"),
        ] {
            let why = match why {
                "?ca=FILE" if !cfg!(feature = "tls") => "(\"zookeeper-tls\" of lockkit)",
                why => why,
            };
            let message = ZkOptions::parse(bad).unwrap_err().to_string();
            assert!(message.contains(why) && !message.contains("secret"), "{bad}: {message}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_that_are_no_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("empty.pem");
        std::fs::write(&file, "nothing").unwrap();
        let empty = file.display();
        for (query, why) in [
            ("ca=/does/not/exist".to_owned(), "/does/not/exist cannot be read"),
            (format!("ca={empty}"), "no certificate in PEM"),
        ] {
            let message = ZkOptions::parse(&format!("zks://a?{query}")).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
