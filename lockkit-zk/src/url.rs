//! The URL of an ensemble, taken apart. No I/O but the reading of certificates.

use lockkit_core::driver::{PemFiles, UrlOption, split_query};
use lockkit_core::{Error, parse_duration, without_password};
use percent_encoding::percent_decode_str;

use crate::ZkOptions;
use crate::paths::Neighbours;

const FORM: &str = "zk://[user:password@]host:port,host:port[/chroot][?ttl=30s], or zks:// for TLS";

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
    /// | `cert=FILE`, `key=FILE` | in PEM, both or none: what to show to a server that asks who is there |
    ///
    /// # Errors
    /// [`Error::Config`], without the password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let shown = without_password(url);
            Error::Config(format!("{shown}: {what}; a ZooKeeper URL is {FORM}"))
        };
        let (secure, rest) = match url.split_once("://") {
            Some(("zk", rest)) => (false, rest),
            Some(("zks", rest)) => (true, rest),
            _ => return Err(wrong("it begins with neither zk:// nor zks://")),
        };
        let (place, query) = split_query(rest);
        // The password may contain '@': everything up to the last one is the login.
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (hosts, chroot) = match place.find('/') {
            Some(slash) => place.split_at(slash),
            None => (place, ""),
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(wrong("it names no server"));
        }
        let mut options = Self::new(hosts);
        if !matches!(chroot, "" | "/") {
            options = options.chroot(chroot)?;
        }
        let query = Query::read(query, &mut options).map_err(|what| wrong(&what))?;
        options = query.log_in(options, login).map_err(|what| wrong(&what))?;
        query.secure(options, secure).map_err(|what| wrong(&what))
    }
}

/// The options that make sense together only.
#[derive(Default)]
struct Query {
    sasl: Option<bool>,
    files: PemFiles,
}

impl Query {
    /// What stands for itself goes into the options at once.
    fn read<'a>(
        query: impl Iterator<Item = UrlOption<'a>>,
        options: &mut ZkOptions,
    ) -> Result<Self, String> {
        let mut read = Self::default();
        let time = |value| parse_duration(value).map_err(|e| e.to_string());
        for option in query {
            let UrlOption { name, value, .. } = option;
            match name {
                "ttl" => options.ttl = time(value)?,
                "session_timeout" => options.session_timeout = Some(time(value)?),
                "tick" => options.tick = time(value)?,
                "neighbours" => {
                    options.neighbours = Some(match value {
                        "curator" => Neighbours::Curator,
                        "kazoo" => Neighbours::Kazoo,
                        _ => return Err("neighbours are curator or kazoo".into()),
                    });
                }
                "login" => {
                    read.sasl = Some(match value {
                        "digest" => false,
                        "sasl" => true,
                        _ => return Err("a login is one of digest or sasl".into()),
                    });
                }
                _ if read.files.take(&option).map_err(|e| e.to_string())? => {}
                _ => return Err(format!("there is no option {name:?}")),
            }
        }
        Ok(read)
    }

    fn log_in(&self, options: ZkOptions, login: Option<&str>) -> Result<ZkOptions, String> {
        let Some(login) = login else {
            return match self.sasl {
                Some(_) => Err("it has no user and password to log in with".into()),
                None => Ok(options),
            };
        };
        let (user, password) = login.split_once(':').ok_or("there is no password")?;
        let (user, password) = (decoded(user)?, decoded(password)?);
        Ok(match self.sasl {
            Some(true) => options.sasl_login(&user, &password),
            _ => options.login(&user, &password),
        })
    }

    fn secure(&self, options: ZkOptions, secure: bool) -> Result<ZkOptions, String> {
        match secure {
            true => self.with_tls(options),
            false if self.files.is_empty() => Ok(options),
            false => Err("certificates are for zks:// only".into()),
        }
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, options: ZkOptions) -> Result<ZkOptions, String> {
        let (ca, pem) = self.files.read_with_authority().map_err(|e| e.to_string())?;
        let tls = zookeeper_client::TlsOptions::new().with_pem_ca(&ca);
        let mut tls = tls.map_err(|e| format!("ca: {e}"))?;
        if let Some((cert, key)) = pem.identity {
            tls = tls.with_pem_identity(&cert, &key).map_err(|e| format!("cert, key: {e}"))?;
        }
        Ok(options.tls(tls))
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, _: ZkOptions) -> Result<ZkOptions, String> {
        Err("zks:// needs the cargo feature \"tls\" of lockkit-zk (\"zk-tls\" of lockkit), which \
             is not compiled in"
            .into())
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| "it is not UTF-8, percent-encoded".into())
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
            ("zk://a?neighbours=us", "curator or kazoo"),
            ("zk://me:secret@a?login=kerberos", "digest or sasl"),
            ("zk://a?login=sasl", "no user and password"),
            ("zk://me:secret%ff@a?login=sasl", "not UTF-8"),
            ("zk://me:secret@a?ca=/x", "for zks:// only"),
            ("zk://me:secret@a?cert=/x&key=/y", "for zks:// only"),
            ("zks://me:secret@a", "?ca=FILE"),
            ("zks://me:secret@a?cert=/x&key=/y", "?ca=FILE"),
        ] {
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
