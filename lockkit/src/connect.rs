//! From a URL to a manager: the one place that knows which schemes there are.

#[cfg(feature = "compose")]
mod several;

use std::pin::Pin;
use std::sync::Arc;

#[cfg(all(doc, feature = "compose"))]
use lockkit_compose::{MirrorDriver, QuorumOptions};
use lockkit_core::driver::LockDriver;
use lockkit_core::{BackendUrl, Error, LockManager, MemoryDriver, Settings};

/// Schemes, and the cargo feature that each needs; none for what is always there.
const SCHEMES: &[(&str, Option<&str>, bool)] = &[
    ("sqlite", Some("sqlite"), cfg!(feature = "sqlite")),
    ("postgres", Some("postgres"), cfg!(feature = "postgres")),
    ("postgresql", Some("postgres"), cfg!(feature = "postgres")),
    ("mysql", Some("mysql"), cfg!(feature = "mysql")),
    ("mariadb", Some("mysql"), cfg!(feature = "mysql")),
    ("redis", Some("redis"), cfg!(feature = "redis")),
    ("rediss", Some("redis"), cfg!(feature = "redis")),
    ("redis+sentinel", Some("redis"), cfg!(feature = "redis")),
    ("rediss+sentinel", Some("redis"), cfg!(feature = "redis")),
    ("redis+cluster", Some("redis"), cfg!(feature = "redis")),
    ("rediss+cluster", Some("redis"), cfg!(feature = "redis")),
    ("zk", Some("zookeeper"), cfg!(feature = "zookeeper")),
    ("zks", Some("zookeeper-tls"), cfg!(feature = "zookeeper-tls")),
    ("etcd", Some("etcd"), cfg!(feature = "etcd")),
    ("etcds", Some("etcd"), cfg!(feature = "etcd")),
    ("s3", Some("s3"), cfg!(feature = "s3")),
    ("dynamodb", Some("dynamodb"), cfg!(feature = "dynamodb")),
    ("az", Some("azure"), cfg!(feature = "azure")),
    ("gs", Some("gcs"), cfg!(feature = "gcs")),
    ("nats", Some("nats"), cfg!(feature = "nats")),
    ("nats+tls", Some("nats"), cfg!(feature = "nats")),
    ("http", Some("http"), cfg!(feature = "http")),
    ("https", Some("http"), cfg!(feature = "http")),
    ("http+unix", Some("http"), cfg!(feature = "http")),
    ("quorum", Some("compose"), cfg!(feature = "compose")),
    ("mirror", Some("compose"), cfg!(feature = "compose")),
    // Last: for tests and single processes.
    ("memory", None, true),
];

/// Connects to the backend that the URL names, with the settings in its query.
///
/// Asks the backend for a sign of life, so that a wrong address or password is an error here. An
/// unknown scheme is an error that lists what is compiled in. Each call with `memory:` makes a new,
/// empty store.
///
/// `quorum:URL,URL,URL` makes one of several. A majority of them must be there; the others are
/// connected as soon as they are. Behind the last URL stand lockkit's options and those of the
/// quorum, [`max_ttl`](QuorumOptions::max_ttl) and
/// [`member_limit`](QuorumOptions::member_limit):
/// `quorum:redis://a,redis://b,redis://c?ttl=10s&max_ttl=1m&member_limit=200ms`.
///
/// `mirror:OLD,NEW` locks on two backends while a fleet moves from one to the other: see
/// [`MirrorDriver`] for the steps. Lockkit's options stand behind the second.
///
/// # Cancel safety
/// Dropping it leaves nothing behind.
pub async fn connect(url: &str) -> Result<LockManager, Error> {
    connect_with(url, Settings::default()).await
}

/// Connects with these settings, and with those in the URL's query. The manager's shutdown closes the
/// connections, as it does after [`connect`].
///
/// # Errors
/// [`Error::Config`] for a setting that is given in both ways, and differs.
///
/// # Cancel safety
/// Dropping it leaves nothing behind.
pub async fn connect_with(url: &str, settings: Settings) -> Result<LockManager, Error> {
    let (driver, settings) = open(url, settings).await?;
    LockManager::owning(driver, settings)
}

/// The statements that make the tables of the SQL database that the URL names, or upgrade them: for
/// those who may make tables, where the users of locks may not. For DynamoDB, S3, Azure and Google Cloud
/// Storage, the commands that make the table or bucket, and a policy or role with the least rights. No I/O.
///
/// [`Error::Config`] for backends that need none of these.
pub fn schema(url: &str) -> Result<String, Error> {
    let url = BackendUrl::parse(url)?;
    match url.scheme() {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            lockkit_sql::PostgresDriver::schema(url.rest(), Default::default())
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => lockkit_sql::MySqlDriver::schema(url.rest(), Default::default()),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => lockkit_store::DynamoStore::schema(url.rest()),
        #[cfg(feature = "s3")]
        "s3" => lockkit_store::S3Store::schema(url.rest()),
        #[cfg(feature = "azure")]
        "az" => lockkit_store::AzureStore::schema(url.rest()),
        #[cfg(feature = "gcs")]
        "gs" => lockkit_store::GcsStore::schema(url.rest()),
        known if SCHEMES.iter().any(|(name, _, here)| *here && *name == known) => {
            Err(Error::Config(format!("{known}: needs no tables made by hand")))
        }
        other => Err(unknown(other)),
    }
}

/// The cargo feature of this crate that the URL needs and that is not compiled in, if any: for
/// programs that tell their users how to get it. Of `quorum:` and `mirror:`, the first member's that
/// lacks one, after `compose` itself. No I/O.
///
/// ```
/// let missing = lockkit::missing_feature("zks://db.example:2281");
/// assert!(missing == Some("zookeeper-tls") || cfg!(feature = "zookeeper-tls"));
/// assert_eq!(lockkit::missing_feature("memory:"), None);
/// ```
pub fn missing_feature(url: &str) -> Option<&'static str> {
    let members = url.strip_prefix("quorum:").or_else(|| url.strip_prefix("mirror:"));
    let urls = std::iter::once(url).chain(members.map_or_else(Vec::new, split));
    urls.into_iter().find_map(|url| {
        let scheme = url.split_once(':')?.0.to_ascii_lowercase();
        let (_, feature, here) = SCHEMES.iter().find(|(name, ..)| *name == scheme)?;
        feature.filter(|_| !here)
    })
}

/// The URLs of the backends that `quorum:` and `mirror:` name; of any other URL, that one. For
/// programs that look at each by itself. No I/O.
///
/// ```
/// # #[cfg(feature = "compose")]
/// let url = "quorum:redis://a,redis://b,redis://c?max_ttl=1m";
/// # #[cfg(feature = "compose")]
/// assert_eq!(lockkit::members(url), ["redis://a", "redis://b", "redis://c"]);
/// assert_eq!(lockkit::members("redis://a"), ["redis://a"]);
/// ```
pub fn members(url: &str) -> Vec<String> {
    #[cfg(feature = "compose")]
    if let Some(members) = url.strip_prefix("quorum:") {
        let members = several::members_of_quorum(members);
        return members.map_or_else(|_| vec![url.to_owned()], |(urls, _)| urls);
    }
    let both = url.strip_prefix("mirror:").map_or_else(|| vec![url], split);
    both.into_iter().map(str::to_owned).collect()
}

/// Boxed, so that what the client crates keep in their futures is no matter of our callers' types.
type Opening<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

fn open(url: &str, settings: Settings) -> Opening<'_, (Arc<dyn LockDriver>, Settings)> {
    Box::pin(async move {
        #[cfg(feature = "compose")]
        if let Some(members) = url.strip_prefix("quorum:") {
            return several::quorum(members, settings).await;
        }
        #[cfg(feature = "compose")]
        if let Some(both) = url.strip_prefix("mirror:") {
            return several::mirror(both, settings).await;
        }
        let url = BackendUrl::parse(url)?;
        let settings = settings.merged_with_url(url.settings())?;
        Ok((driver(&url, &settings).await?, settings))
    })
}

fn driver<'a>(url: &'a BackendUrl, settings: &'a Settings) -> Opening<'a, Arc<dyn LockDriver>> {
    Box::pin(made(url, settings))
}

/// Whether the driver understands what the URL says, so far as it can tell without its backend.
fn check(url: &BackendUrl) -> Result<(), Error> {
    match url.scheme() {
        "memory" if url.rest() == "memory:" => Ok(()),
        "memory" => Err(Error::config("the memory backend's URL is just memory:")),
        #[cfg(feature = "sqlite")]
        "sqlite" => lockkit_sql::SqliteDriver::check_url(url.rest()),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => lockkit_sql::PostgresDriver::check_url(url.rest()),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => lockkit_sql::MySqlDriver::check_url(url.rest()),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => lockkit_redis::RedisDriver::check_url(url.rest()),
        #[cfg(feature = "zookeeper")]
        "zk" | "zks" => lockkit_zk::ZkDriver::check_url(url.rest()),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => lockkit_etcd::EtcdDriver::check_url(url.rest()),
        #[cfg(feature = "s3")]
        "s3" => lockkit_store::StoreDriver::check_url(url.rest()),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => lockkit_store::StoreDriver::check_url(url.rest()),
        #[cfg(feature = "azure")]
        "az" => lockkit_store::StoreDriver::check_url(url.rest()),
        #[cfg(feature = "gcs")]
        "gs" => lockkit_store::StoreDriver::check_url(url.rest()),
        #[cfg(feature = "nats")]
        "nats" | "nats+tls" => lockkit_store::StoreDriver::check_url(url.rest()),
        #[cfg(feature = "http")]
        "http" | "https" | "http+unix" => lockkit_http::HttpDriver::check_url(url.rest()),
        other => Err(unknown(other)),
    }
}

async fn made(url: &BackendUrl, settings: &Settings) -> Result<Arc<dyn LockDriver>, Error> {
    check(url)?;
    // Most backends keep a lease for each claim, and learn its ttl from the claim.
    let _ = settings;
    match url.scheme() {
        "memory" => Ok(Arc::new(MemoryDriver::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(lockkit_sql::SqliteDriver::connect(url.rest()).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            Ok(Arc::new(lockkit_sql::PostgresDriver::connect(url.rest()).await?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Arc::new(lockkit_sql::MySqlDriver::connect(url.rest()).await?)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
        | "rediss+cluster" => Ok(Arc::new(lockkit_redis::RedisDriver::connect(url.rest()).await?)),
        #[cfg(feature = "zookeeper")]
        "zk" | "zks" => {
            let options = lockkit_zk::ZkOptions::parse(url.rest())?.ttl(settings.default_ttl());
            Ok(Arc::new(lockkit_zk::ZkDriver::connect_with(options).await?))
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(lockkit_etcd::EtcdDriver::connect(url.rest()).await?)),
        #[cfg(feature = "s3")]
        "s3" => Ok(Arc::new(lockkit_store::StoreDriver::connect_url(url.rest()).await?)),
        #[cfg(feature = "dynamodb")]
        "dynamodb" => Ok(Arc::new(lockkit_store::StoreDriver::connect_url(url.rest()).await?)),
        #[cfg(feature = "azure")]
        "az" => Ok(Arc::new(lockkit_store::StoreDriver::connect_url(url.rest()).await?)),
        #[cfg(feature = "gcs")]
        "gs" => Ok(Arc::new(lockkit_store::StoreDriver::connect_url(url.rest()).await?)),
        #[cfg(feature = "nats")]
        "nats" | "nats+tls" => {
            Ok(Arc::new(lockkit_store::StoreDriver::connect_url(url.rest()).await?))
        }
        #[cfg(feature = "http")]
        "http" | "https" | "http+unix" => {
            Ok(Arc::new(lockkit_http::HttpDriver::connect(url.rest()).await?))
        }
        other => Err(unknown(other)),
    }
}

/// Cuts a list of URLs at the commas behind which another one begins: members may have commas of
/// their own.
fn split(urls: &str) -> Vec<&str> {
    let begins = |text: &str| {
        SCHEMES.iter().filter(|(scheme, ..)| !["quorum", "mirror"].contains(scheme)).any(
            |(scheme, ..)| {
                let rest = text.strip_prefix(scheme);
                let local = ["memory", "sqlite"].contains(scheme);
                rest.is_some_and(|r| r.starts_with("://") || local && r.starts_with(':'))
            },
        )
    };
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, _) in urls.match_indices(',').filter(|(at, _)| begins(&urls[at + 1..])) {
        parts.push(&urls[from..at]);
        from = at + 1;
    }
    parts.push(&urls[from..]);
    parts
}

fn unknown(scheme: &str) -> Error {
    let compiled_in: Vec<_> =
        SCHEMES.iter().filter(|(_, _, here)| *here).map(|(name, ..)| format!("{name}:")).collect();
    let compiled_in = compiled_in.join(", ");
    let known = SCHEMES.iter().find(|(name, ..)| *name == scheme);
    Error::Config(match known {
        Some((_, Some(feature), _)) => format!(
            "{scheme}: needs the cargo feature {feature:?} of lockkit, which is not compiled in: \
             cargo add lockkit --features {feature} (there is: {compiled_in})"
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
        assert!(message.contains("cargo add lockkit --features sqlite"), "{message}");
    }

    #[test]
    fn the_feature_that_a_url_lacks_is_known() {
        let lacking = |feature: &'static str, here: bool| (!here).then_some(feature);
        let zks = lacking("zookeeper-tls", cfg!(feature = "zookeeper-tls"));
        assert_eq!(missing_feature("ZKS://a:1"), zks);
        let compose = lacking("compose", cfg!(feature = "compose"));
        assert_eq!(missing_feature("quorum:memory:,memory:,zks://a:1"), compose.or(zks));
        assert_eq!(missing_feature("mirror:memory:,memory:"), compose);
        let etcd = lacking("etcd", cfg!(feature = "etcd"));
        assert_eq!(missing_feature("etcds://a:1?ttl=3s"), etcd);
        for other in ["carrier-pigeon://coop", "nothing", ""] {
            assert_eq!(missing_feature(other), None, "{other}");
        }
    }

    #[cfg(feature = "s3")]
    #[tokio::test]
    async fn a_bucket_whose_url_cannot_work_is_refused_before_any_request() {
        let refused = connect("s3://bucket/locks?region=x&retries=3").await.unwrap_err();
        assert!(refused.to_string().contains("retries is no option of an S3 bucket"), "{refused}");
        let refused = connect("s3://key:secret@bucket").await.unwrap_err();
        assert!(!refused.to_string().contains("secret"), "{refused}");
    }

    #[cfg(feature = "dynamodb")]
    #[tokio::test]
    async fn a_table_whose_url_cannot_work_is_refused_before_any_request() {
        let refused = connect("dynamodb://locks?region=x&retries=3").await.unwrap_err();
        assert!(refused.to_string().contains("retries is no option of a table"), "{refused}");
        let schema = schema("dynamodb://locks?region=eu-west-1&namespace=shop&ttl=5s").unwrap();
        assert!(schema.contains("--region eu-west-1 --table-name locks"), "{schema}");
    }

    #[cfg(all(feature = "azure", feature = "gcs"))]
    #[tokio::test]
    async fn buckets_of_azure_and_google_are_known_and_have_a_schema() {
        let refused = connect("az://locks?account=mine&region=x").await.unwrap_err();
        assert!(refused.to_string().contains("no option of an Azure container"), "{refused}");
        let refused = connect("gs://locks?region=x").await.unwrap_err();
        assert!(refused.to_string().contains("no option of a bucket of Google"), "{refused}");
        assert!(schema("az://locks?account=mine").unwrap().contains("--account-name mine"));
        assert!(schema("gs://my-locks").unwrap().contains("gs://my-locks"));
    }

    #[cfg(feature = "compose")]
    #[tokio::test]
    async fn a_quorum_has_its_settings_behind_the_last_member() {
        let url = "quorum:memory:,memory:,memory:?ttl=5s&namespace=shop";
        let locks = connect(url).await.unwrap();
        assert_eq!(locks.settings().namespace_str(), "shop");
        let guard = locks.mutex("a").lock().await.unwrap();
        assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
        guard.release().await.unwrap();
        assert!(connect("quorum:memory:,memory:").await.is_err());
        assert!(connect("quorum:memory:?ttl=5s,memory:,memory:").await.is_err());
        assert!(connect("quorum:memory:,quorum:memory:,memory:").await.is_err());
    }

    /// It does not tell whether the backend behind it has taken the tokens over.
    #[cfg(all(feature = "compose", feature = "http"))]
    #[tokio::test]
    async fn a_lock_service_is_no_new_backend_of_a_mirror() {
        for new in ["http://127.0.0.1:1", "https://localhost?ttl=3s"] {
            let refused = connect(&format!("mirror:memory:,{new}")).await.unwrap_err();
            assert!(matches!(refused, Error::Config(_)), "{refused}");
            assert!(refused.to_string().contains("the backend behind it"), "{refused}");
        }
        let unreachable = connect("mirror:http://127.0.0.1:1,memory:").await.unwrap_err();
        assert!(matches!(unreachable, Error::Backend { .. }), "{unreachable}");
    }

    #[cfg(feature = "compose")]
    #[tokio::test]
    async fn a_quorum_has_its_own_options_there_too() {
        let url = "quorum:memory:,memory:,memory:?max_ttl=3m&ttl=2m&member_limit=80ms";
        let locks = connect(url).await.unwrap();
        assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
        let refused = locks.mutex("b").ttl(std::time::Duration::from_secs(181)).try_lock().await;
        assert!(refused.unwrap_err().to_string().contains("max_ttl"));
        for wrong in ["max_ttl=soon", "max_ttl=0", "member_limit=0ms"] {
            assert!(connect(&format!("quorum:memory:,memory:,memory:?{wrong}")).await.is_err());
        }
        assert!(connect("quorum:memory:?max_ttl=1m,memory:,memory:").await.is_err());
    }

    #[cfg(all(feature = "compose", feature = "redis"))]
    #[tokio::test]
    async fn an_option_that_nobody_knows_is_refused_before_anybody_is_asked() {
        // No server listens there.
        let url = "quorum:redis://127.0.0.1:1,redis://127.0.0.1:1,redis://127.0.0.1:1";
        let misspelt = connect(&format!("{url}?longest_tl=1m")).await.unwrap_err();
        assert!(misspelt.to_string().contains("longest_tl is no option"), "{misspelt}");
        assert!(misspelt.to_string().contains("max_ttl"), "{misspelt}");
        let unreachable = connect(&format!("{url}?max_ttl=1m&timeout=1s")).await.unwrap_err();
        assert!(unreachable.is_retryable(), "{unreachable}");
    }

    #[cfg(feature = "compose")]
    #[tokio::test]
    async fn a_mirror_has_its_settings_behind_the_new_one() {
        let locks = connect("mirror:memory:,memory:?namespace=shop").await.unwrap();
        assert_eq!(locks.settings().namespace_str(), "shop");
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
        let of_another = "memory:,memory:?max_ttl=1m";
        for bad in ["memory:", "memory:,memory:,memory:", "memory:?ttl=5s,memory:", of_another] {
            assert!(connect(&format!("mirror:{bad}")).await.is_err(), "{bad}");
        }
    }

    #[test]
    fn members_may_have_commas_of_their_own() {
        let urls = "redis+cluster://a:1,b:2,sqlite:/x,y.db,rediss://c";
        assert_eq!(split(urls), ["redis+cluster://a:1,b:2", "sqlite:/x,y.db", "rediss://c"]);
    }

    #[tokio::test]
    async fn settings_come_from_the_url() {
        let locks = connect("memory:?namespace=shop&ttl=5s").await.unwrap();
        assert_eq!(locks.settings().namespace_str(), "shop");
        assert!(connect("memory:?ttl=1ms").await.is_err());
        let shop = || Settings::default().namespace("shop");
        let both = connect_with("memory:?namespace=shop&ttl=5s", shop()).await.unwrap();
        assert_eq!(both.settings().default_ttl(), std::time::Duration::from_secs(5));
        let differ = connect_with("memory:?namespace=mall", shop()).await;
        assert!(matches!(differ, Err(Error::Config(_))), "{differ:?}");
        assert!(connect("memory:/tmp").await.is_err());
    }
}
