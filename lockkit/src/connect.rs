//! From a URL to a manager: the one place that knows which schemes there are.

use std::sync::Arc;

use lockkit_core::driver::LockDriver;
use lockkit_core::{BackendUrl, Error, LockManager, MemoryDriver, Settings};

/// Schemes, and the cargo feature that each needs; none for what is always there.
const SCHEMES: &[(&str, Option<&str>, bool)] = &[
    ("memory", None, true),
    ("sqlite", Some("sqlite"), cfg!(feature = "sqlite")),
    ("redis", Some("redis"), cfg!(feature = "redis")),
    ("rediss", Some("redis"), cfg!(feature = "redis")),
    ("redis+sentinel", Some("redis"), cfg!(feature = "redis")),
    ("rediss+sentinel", Some("redis"), cfg!(feature = "redis")),
    ("redis+cluster", Some("redis"), cfg!(feature = "redis")),
    ("rediss+cluster", Some("redis"), cfg!(feature = "redis")),
    ("zk", Some("zk"), cfg!(feature = "zk")),
    ("etcd", Some("etcd"), cfg!(feature = "etcd")),
    ("etcds", Some("etcd"), cfg!(feature = "etcd")),
];

/// Connects to the backend that the URL names, with the settings in its query.
///
/// Asks the backend for a sign of life, so that a wrong address or password is an error here. An
/// unknown scheme is an error that lists what is compiled in. Each call with `memory:` makes a new,
/// empty store.
///
/// # Cancel safety
/// Dropping it leaves nothing behind.
pub async fn connect(url: &str) -> Result<LockManager, Error> {
    let url = BackendUrl::parse(url)?;
    let settings = url.settings().clone();
    LockManager::with(driver(&url, &settings).await?, settings)
}

/// Connects with these settings, instead of those in the URL's query.
///
/// # Cancel safety
/// Dropping it leaves nothing behind.
pub async fn connect_with(url: &str, settings: Settings) -> Result<LockManager, Error> {
    let url = BackendUrl::parse(url)?;
    LockManager::with(driver(&url, &settings).await?, settings)
}

async fn driver(url: &BackendUrl, settings: &Settings) -> Result<Arc<dyn LockDriver>, Error> {
    // Most backends keep a lease for each claim, and learn its ttl from the claim.
    let _ = settings;
    match url.scheme() {
        "memory" if url.rest() == "memory:" => Ok(Arc::new(MemoryDriver::new())),
        "memory" => Err(Error::config("the memory backend's URL is just memory:")),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(lockkit_sql::SqliteDriver::connect(url.rest()).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => Ok(Arc::new(lockkit_redis::RedisDriver::connect(url.rest()).await?)),
        #[cfg(feature = "zk")]
        "zk" => {
            let options = lockkit_zk::ZkOptions::parse(url.rest())?.ttl(settings.default_ttl());
            Ok(Arc::new(lockkit_zk::ZkDriver::connect_with(options).await?))
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(lockkit_etcd::EtcdDriver::connect(url.rest()).await?)),
        other => Err(unknown(other)),
    }
}

fn unknown(scheme: &str) -> Error {
    let compiled_in: Vec<_> =
        SCHEMES.iter().filter(|(_, _, here)| *here).map(|(name, ..)| format!("{name}:")).collect();
    let compiled_in = compiled_in.join(", ");
    let known = SCHEMES.iter().find(|(name, ..)| *name == scheme);
    Error::Config(match known {
        Some((_, Some(feature), _)) => format!(
            "{scheme}: needs the cargo feature {feature:?} of lockkit, which is not compiled in \
             (there is: {compiled_in})"
        ),
        _ => format!("there is no backend for {scheme}: (there is: {compiled_in})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unknown_scheme_lists_what_is_compiled_in() {
        let message = connect("carrier-pigeon://coop").await.unwrap_err().to_string();
        assert!(message.contains("carrier-pigeon") && message.contains("memory:"), "{message}");
    }

    #[cfg(not(feature = "sqlite"))]
    #[tokio::test]
    async fn a_scheme_that_is_not_compiled_in_names_its_feature() {
        let message = connect("sqlite:a.db").await.unwrap_err().to_string();
        assert!(message.contains("feature \"sqlite\""), "{message}");
    }

    #[tokio::test]
    async fn settings_come_from_the_url() {
        let locks = connect("memory:?prefix=shop&ttl=5s").await.unwrap();
        assert_eq!(locks.settings().prefix_str(), "shop");
        assert!(connect("memory:?ttl=1ms").await.is_err());
        assert!(connect("memory:/tmp").await.is_err());
    }
}
