//! The URL of a bucket in NATS, taken apart. No I/O but the reading of files that it names.
//!
//! `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST[:PORT]…]/BUCKET`, or `nats+tls:` for TLS with the options
//! `ca=FILE`, `cert=FILE` and `key=FILE` (both or none); `creds=FILE` or `nkey=FILE` instead of a login;
//! `replicas=N` for a bucket that is created.

use std::fs;
use std::time::Duration;

use async_nats::rustls::crypto::{CryptoProvider, ring};
use async_nats::{ConnectOptions, ServerAddr};
use lockkit_core::driver::ServerUrl;
use lockkit_core::{Error, Result};

use crate::options::StoreOptions;

const PORT: u16 = 4222;
const FORM: &str = "a NATS URL is nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][,HOST[:PORT]…]/BUCKET, or \
                    nats+tls:// for TLS";
const CONNECT: Duration = Duration::from_secs(2);
/// A server that leaves three of these unanswered is left for another one.
const PING: Duration = Duration::from_secs(2);
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// Where to connect, and how.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) servers: Vec<ServerAddr>,
    pub(crate) bucket: String,
    /// Of a bucket that is created.
    pub(crate) replicas: Option<u64>,
    pub(crate) options: ConnectOptions,
    pub(crate) store: StoreOptions,
}

/// Takes a URL apart.
pub(crate) fn parse(text: &str) -> Result<Target> {
    let url = ServerUrl::parse(text, FORM)?;
    let scheme = match url.scheme {
        "nats" => "nats",
        "nats+tls" => "tls",
        _ => return Err(url.error("it begins with neither nats:// nor nats+tls://")),
    };
    let servers = url.hosts_with_port(PORT).into_iter();
    let servers = servers.map(|host| format!("{scheme}://{host}").parse());
    let servers = servers.collect::<Result<_, _>>();
    let servers = servers.map_err(|_| url.error("it names a server that cannot be"))?;
    let bucket = url.decoded(url.path.trim_start_matches('/'))?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_name) {
        return Err(url.error("the name of a bucket has letters, digits, - and _ only"));
    }
    let (mut options, mut logins) = (plain(), 0);
    if let Some(login) = url.login {
        logins += 1;
        options = match url.user_and_password() {
            Ok(Some((user, password))) => options.user_and_password(user, password),
            _ => options.token(url.decoded(login)?),
        };
    }
    let (mut replicas, mut store) = (None, StoreOptions::default());
    for option in &url.options {
        match option.name {
            "replicas" => replicas = Some(option.number(1..=5)?),
            "creds" => {
                logins += 1;
                let file = option.decoded()?;
                let missing = |_| url.error(&format!("creds={file} has no JWT and seed of a user"));
                options = options.credentials(&read(&file)?).map_err(missing)?;
            }
            "nkey" => {
                logins += 1;
                options = options.nkey(seed(&url, &option.decoded()?)?);
            }
            _ if store.take(option)? => {}
            _ => {
                let known =
                    format!("replicas, creds, nkey, ca, cert, key, {}", StoreOptions::NAMES);
                return Err(url.unknown_option(option, &known));
            }
        }
    }
    if logins > 1 {
        return Err(url.error("there is more than one of a login, creds and nkey"));
    }
    if url.scheme == "nats+tls" {
        options = with_tls(options, &url)?;
    } else {
        url.check_no_pem_files("nats+tls")?;
    }
    Ok(Target { servers, bucket, replicas, options, store })
}

fn plain() -> ConnectOptions {
    let pause = |attempt: usize| {
        let attempt = u32::try_from(attempt).unwrap_or(u32::MAX).saturating_sub(1);
        Duration::from_millis(50).saturating_mul(attempt).min(MOST_PAUSE)
    };
    ConnectOptions::new()
        .name("lockkit")
        .connection_timeout(CONNECT)
        .ping_interval(PING)
        .reconnect_delay_callback(pause)
}

fn with_tls(mut options: ConnectOptions, url: &ServerUrl<'_>) -> Result<ConnectOptions> {
    // So that what cannot work is refused with the reason; the client reads them again.
    url.pem_files.read()?;
    if CryptoProvider::get_default().is_none() {
        // It fails only if another thread installs one at this moment.
        let _ = ring::default_provider().install_default();
    }
    if let Some(ca) = url.pem_files.ca() {
        options = options.add_root_certificates(ca.into());
    }
    if let Some((cert, key)) = url.pem_files.identity() {
        options = options.add_client_certificate(cert.into(), key.into());
    }
    Ok(options.require_tls(true))
}

/// The seed of a user's NKey, which may stand between comments.
fn seed(url: &ServerUrl<'_>, file: &str) -> Result<String> {
    let text = read(file)?;
    let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let missing = || url.error(&format!("nkey={file} has no line with a user's seed (SU…)"));
    seed.map(str::to_owned).ok_or_else(missing)
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file)
        .map_err(|error| Error::Config(format!("{file} cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_their_port_and_scheme() {
        let target = parse("nats://a,b:1,[::1]/locks-1?replicas=3&pace=50ms").unwrap();
        let servers: Vec<_> = target.servers.iter().map(|s| (s.host(), s.port())).collect();
        assert_eq!(servers, [("a", 4222), ("b", 1), ("::1", 4222)]);
        assert_eq!((target.bucket.as_str(), target.replicas), ("locks-1", Some(3)));
        assert!(parse("nats+tls://a/b").unwrap().servers[0].tls_required());
    }

    #[test]
    fn what_cannot_work_is_refused_without_showing_a_secret() {
        for (bad, why) in [
            ("nats://h", "bucket"),
            ("nats://h/", "bucket"),
            ("nats://h/a/b", "bucket"),
            ("nats://h/a.b", "bucket"),
            ("nats:///b", "no server"),
            ("tls://h/b", "neither"),
            ("nats://hunter2@h/b?colour=red", "\"colour\""),
            ("nats://u:hunter2@h/b?creds=/x", "/x cannot be read"),
            ("nats://hunter2@h/b?nkey=/dev/null", "no line with a user's seed"),
            ("nats://h/b?creds=/dev/null", "no JWT"),
            ("nats://hunter2@h/b?replicas=9", "replicas is a number from 1 to 5"),
            ("nats://hunter2@h/b?ca=/x", "nats+tls:// only"),
            ("nats+tls://hunter2@h/b?ca=/does/not/exist", "cannot be read"),
        ] {
            let message = parse(bad).err().map(|e| e.to_string());
            let message = message.unwrap_or_else(|| panic!("{bad} was taken"));
            assert!(message.contains(why) && !message.contains("hunter2"), "{bad}: {message}");
        }
    }

    #[test]
    fn there_is_one_login() {
        let folder = std::env::temp_dir().join(format!("lockkit-nkey-{}", std::process::id()));
        fs::write(&folder, "# mine\nSUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n")
            .unwrap();
        let file = folder.display();
        assert!(parse(&format!("nats://h/b?nkey={file}")).is_ok());
        let both = parse(&format!("nats://u:p@h/b?nkey={file}")).err().unwrap().to_string();
        assert!(both.contains("more than one"), "{both}");
        fs::remove_file(folder).unwrap();
    }
}
