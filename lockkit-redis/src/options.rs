//! From a URL, or from the user's own client, to a driver.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lockkit_core::Error;
use lockkit_core::driver::{Pem, PemFiles, ServerUrl, UrlOption};
use lockkit_core::state::Severity;
use redis::aio::ConnectionManager;
use redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use crate::cluster::Cluster;
use crate::connection::ServerConnection;
use crate::driver::RedisDriver;
use crate::error::{bounded, to_error};
use crate::locator::{ClusterNodes, ServerLocator};
use crate::neighbours::RedisNeighbours;
use crate::publisher::Publisher;
use crate::replicas::Replicas;
use crate::sentinel::Sentinels;
use crate::transport::Transport;
use crate::{format, health};

/// How to connect. The query of a URL has the same options.
///
/// ```no_run
/// use std::time::Duration;
/// use lockkit_redis::RedisOptions;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// let options = RedisOptions::default().timeout(Duration::from_secs(2)).min_replicas(1);
/// let driver = options.connect("rediss://10.0.0.7").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RedisOptions {
    timeout: Duration,
    strict: bool,
    min_replicas: u32,
    certificates: Option<TlsCertificates>,
    neighbours: Option<RedisNeighbours>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        let timeout = Duration::from_secs(2);
        Self { timeout, strict: false, min_replicas: 0, certificates: None, neighbours: None }
    }
}

impl RedisOptions {
    /// How long one attempt to connect, and one command, may take before it counts as failed; 2 s
    /// unless set. (`?timeout=2s`)
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether a server that may drop locks (by eviction), or that is a read-only replica, is
    /// refused at connection, rather than warned of. (`?strict=true`)
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// A grant counts only once so many replicas acknowledged it, and is given back when they do
    /// not. Costs a second round trip (a renewal with `WAIT`), on a connection of its own.
    /// (`?min_replicas=1`)
    ///
    /// Renewals, downgrades and raises of tokens, which move the deadline, need the replicas, too; one that they did
    /// not acknowledge is asked for again, and its claim is not given back.
    /// With too few replicas for longer than a TTL all guards end. Registers are not covered.
    ///
    /// It makes it rarer that a failover forgets a lock; only tokens make it harmless. In a cluster
    /// they are replicas of the master that keeps the lock.
    pub fn min_replicas(mut self, least: u32) -> Self {
        self.min_replicas = least;
        self
    }

    /// Excludes, and is excluded by, locks that programs take with another library at the same server, under
    /// the same names. Exclusive locks only, and not in a cluster; one more round trip for an acquire, a
    /// renewal and a release. Stored in the namespace, all of whose processes need the same.
    /// (`?neighbours=set-nx`, `?neighbours=redisson`)
    pub fn neighbours(mut self, neighbours: RedisNeighbours) -> Self {
        self.neighbours = Some(neighbours);
        self
    }

    /// Certificate authorities to trust instead of the system's, and the client certificate and key for a
    /// server that asks for one; for URLs that speak TLS. In PEM. (`?ca=FILE`, `?cert=FILE&key=FILE`)
    ///
    /// Not behind sentinels: there the system's store counts, or the file that the environment
    /// variable `SSL_CERT_FILE` names.
    pub fn certificates(mut self, certificates: TlsCertificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Connects to the one server, or the sentinels' master, or the cluster that the URL names;
    /// the URL's query takes precedence over these options.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(self, url: &str) -> Result<RedisDriver, Error> {
        let server = RedisUrl::parse(url, self)?;
        if server.tls {
            provide_tls();
        }
        // Boxed, so that what the client crate keeps in its futures is no matter of our callers' types.
        server.connect().boxed().await
    }

    /// A driver over this client's server. It makes its own connections: one for commands, rebuilt
    /// when it breaks, and one to listen for wake-ups.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn client(self, client: Client) -> Result<RedisDriver, Error> {
        self.server(ServerLocator::Client(client)).await
    }

    /// A driver that sends its commands through this connection manager, and listens for wake-ups
    /// on a connection that `client` makes. Give the manager a bounded number of retries.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connection_manager(
        self,
        mut manager: ConnectionManager,
        client: Client,
    ) -> Result<RedisDriver, Error> {
        let locator = Arc::new(ServerLocator::Client(client));
        let publisher = Arc::new(Publisher::new());
        let greeting = publisher.greet(&mut manager);
        bounded(self.timeout, greeting).await.map_err(to_error)?;
        let transport = Transport::Manager(manager, self.timeout);
        let for_replicas = self.transport_to(&locator, &publisher);
        self.finish(transport, locator, publisher, for_replicas).await
    }

    /// A driver over the cluster that these nodes are in; the others are found, and logged in at as
    /// at the first of these. It makes its own connections: one to each master, and one to listen for
    /// wake-ups, since a message published at any node of a cluster reaches all of them.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn cluster(self, nodes: Vec<Client>) -> Result<RedisDriver, Error> {
        if nodes.is_empty() {
            return Err(Error::config("a cluster needs at least one node to ask for the others"));
        }
        self.check_cluster()?;
        let publisher = Arc::new(Publisher::new());
        let [transport, for_replicas] =
            [(); 2].map(|()| Transport::Cluster(Cluster::new(&nodes, &publisher, self.timeout)));
        let locator = Arc::new(ServerLocator::Any(ClusterNodes::new(nodes)));
        self.finish(transport, locator, publisher, for_replicas).await
    }

    fn check_cluster(&self) -> Result<(), Error> {
        match self.neighbours {
            None => Ok(()),
            Some(_) => Err(Error::config(
                "neighbours are not excluded in a cluster: use one server, or sentinels, for locks that are \
                 shared with other libraries",
            )),
        }
    }

    async fn server(self, locator: ServerLocator) -> Result<RedisDriver, Error> {
        let (locator, publisher) = (Arc::new(locator), Arc::new(Publisher::new()));
        let [transport, for_replicas] = [(); 2].map(|()| self.transport_to(&locator, &publisher));
        self.finish(transport, locator, publisher, for_replicas).await
    }

    fn transport_to(&self, locator: &Arc<ServerLocator>, publisher: &Arc<Publisher>) -> Transport {
        let connection = ServerConnection::new(locator.clone(), publisher.clone(), self.timeout);
        Transport::Server(Box::new(connection))
    }

    async fn finish(
        self,
        transport: Transport,
        locator: Arc<ServerLocator>,
        publisher: Arc<Publisher>,
        for_replicas: Transport,
    ) -> Result<RedisDriver, Error> {
        let least = Some(self.min_replicas).filter(|least| *least > 0);
        let replicas = least.map(|least| Replicas::new(least, for_replicas, self.timeout));
        let (limit, neighbours) = (self.timeout, self.neighbours);
        let driver = RedisDriver::start(transport, locator, publisher, replicas, limit, neighbours);
        let health = health::examine(&driver.inner).await?;
        format::check(&driver.inner).await?;
        for finding in &health.findings {
            let (what, advice) = (&finding.what, &finding.advice);
            match finding.severity {
                Severity::Note => tracing::debug!(server = health.server, "{what}: {advice}"),
                _ if self.strict => return Err(Error::Config(format!("{what}: {advice}"))),
                _ => tracing::warn!(server = health.server, "{what}: {advice}"),
            }
        }
        Ok(driver)
    }
}

impl RedisDriver {
    /// Connects to `redis://`, `rediss://`, `redis+sentinel://` or `redis+cluster://`; see the
    /// crate's documentation for the forms.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        RedisOptions::default().connect(url).await
    }

    /// Whether [`connect`](Self::connect) understands this URL and its options. Asks no server;
    /// reads the files that the URL names.
    pub fn check_url(url: &str) -> Result<(), Error> {
        RedisUrl::parse(url, RedisOptions::default())?.check()
    }
}

/// Installs a provider of cryptography unless the program has one.
fn provide_tls() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have been faster, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// A URL, taken apart, and the options with what it says of them.
struct RedisUrl {
    kind: UrlKind,
    tls: bool,
    /// `USER:PASSWORD@`, or nothing.
    login: String,
    hosts: Vec<String>,
    /// What follows the hosts, with its slash.
    path: String,
    /// The query, without what is ours.
    query: String,
    /// `USER:PASSWORD@` of the sentinels.
    sentinel_login: String,
    options: RedisOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UrlKind {
    Single,
    Sentinel,
    Cluster,
}

impl RedisUrl {
    fn parse(url: &str, options: RedisOptions) -> Result<Self, Error> {
        let url = ServerUrl::parse(url, "a Redis URL is redis://HOST:6379")?;
        let (kind, tls) = match url.scheme {
            "redis" => (UrlKind::Single, false),
            "rediss" => (UrlKind::Single, true),
            "redis+sentinel" => (UrlKind::Sentinel, false),
            "rediss+sentinel" => (UrlKind::Sentinel, true),
            "redis+cluster" => (UrlKind::Cluster, false),
            "rediss+cluster" => (UrlKind::Cluster, true),
            _ => {
                let schemes = "redis, rediss, redis+sentinel, redis+cluster";
                return Err(url.error(&format!("it begins with none of {schemes}")));
            }
        };
        if kind == UrlKind::Single && url.hosts.len() > 1 {
            let schemes = "redis+cluster:// or redis+sentinel://";
            return Err(url.error(&format!("it has several hosts: use {schemes}")));
        }
        if kind == UrlKind::Sentinel && url.path.len() < 2 {
            let form = "redis+sentinel://HOST:26379/MASTER";
            return Err(url.error(&format!("it needs the master's name: {form}")));
        }
        let hosts = match kind {
            UrlKind::Sentinel => url.hosts_with_port(26_379),
            _ => url.hosts.iter().map(|host| (*host).to_owned()).collect(),
        };
        let mut redis = Self {
            kind,
            tls,
            login: url.login.map(|login| format!("{login}@")).unwrap_or_default(),
            hosts,
            path: url.path.to_owned(),
            query: String::new(),
            sentinel_login: String::new(),
            options,
        };
        redis.read_options(&url.options)?;
        redis.read_certificates(&url.pem_files)?;
        Ok(redis)
    }

    fn read_options(&mut self, options: &[UrlOption<'_>]) -> Result<(), Error> {
        let mut others = Vec::new();
        for option in options {
            let value = option.value;
            match option.name {
                "strict" => self.options.strict = option.switch()?,
                "timeout" => self.options.timeout = option.duration()?,
                "min_replicas" => self.options.min_replicas = option.number(0..=u32::MAX)?,
                "neighbours" => {
                    self.options.neighbours = Some(option.choice(&RedisNeighbours::WORDS)?);
                }
                "sentinel_login" => self.sentinel_login = format!("{value}@"),
                // The client's own.
                "protocol" => others.push(option.text),
                other => {
                    // The client reads these in URLs of Unix sockets, and skips them in all others.
                    let instead = match other {
                        "db" => ": end the path with the database, /DB",
                        "user" | "pass" => ": write USER:PASSWORD@ before the hosts",
                        _ => "",
                    };
                    let refusal = format!("{other} is no option of a Redis URL{instead}");
                    return Err(Error::Config(refusal));
                }
            }
        }
        self.query = others.join("&");
        if self.kind == UrlKind::Cluster {
            self.options.check_cluster()?;
        }
        if self.options.timeout < Duration::from_millis(10) {
            return Err(Error::config("a timeout of less than 10 ms is too short for Redis"));
        }
        Ok(())
    }

    fn read_certificates(&mut self, files: &PemFiles) -> Result<(), Error> {
        if !files.is_empty() {
            let Pem { ca, identity, .. } = files.read()?;
            let client_tls = identity.map(|(cert, key)| ClientTlsConfig {
                client_cert: cert.into_bytes(),
                client_key: key.into_bytes(),
            });
            let root_cert = ca.map(String::into_bytes);
            self.options.certificates = Some(TlsCertificates { client_tls, root_cert });
        }
        match (&self.options.certificates, self.tls, self.kind) {
            (Some(_), false, _) => Err(Error::config("certificates need a URL that speaks TLS")),
            (Some(_), true, UrlKind::Sentinel) => Err(Error::config(
                "behind sentinels the system's certificates count, or those in SSL_CERT_FILE",
            )),
            _ => Ok(()),
        }
    }

    /// Has the client crate read its part.
    fn check(&self) -> Result<(), Error> {
        if self.tls {
            provide_tls();
        }
        if self.kind == UrlKind::Sentinel {
            return self.sentinel().map(drop);
        }
        self.hosts.iter().try_for_each(|host| self.info(host, &self.login, &self.path).map(drop))
    }

    async fn connect(self) -> Result<RedisDriver, Error> {
        match self.kind {
            UrlKind::Single => {
                let client = Client::open(self.info(&self.hosts[0], &self.login, &self.path)?);
                let client = client.map_err(config_error)?;
                self.options.client(client).await
            }
            UrlKind::Sentinel => {
                let source = self.sentinel()?;
                self.options.server(source).await
            }
            UrlKind::Cluster => self.cluster().await,
        }
    }

    fn info(&self, host: &str, login: &str, path: &str) -> Result<ConnectionInfo, Error> {
        let scheme = if self.tls { "rediss" } else { "redis" };
        let query = if self.query.is_empty() { String::new() } else { format!("?{}", self.query) };
        let url = format!("{scheme}://{login}{host}{path}{query}");
        let info = url.as_str().into_connection_info().map_err(config_error)?;
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let Some(certificates) = &self.options.certificates else { return Ok(info) };
        let client = Client::build_with_tls(info, certificates.clone()).map_err(config_error)?;
        Ok(client.get_connection_info().clone())
    }

    fn sentinel(&self) -> Result<ServerLocator, Error> {
        let (master, db) = match self.path[1..].split_once('/') {
            Some((master, db)) => (master, format!("/{db}")),
            None => (&self.path[1..], String::new()),
        };
        let sentinels = self.hosts.iter().map(|host| self.info(host, &self.sentinel_login, ""));
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>()?;
        let server = self.info("master", &self.login, &db)?;
        let open = |info| Client::open(info).map_err(config_error);
        let sentinels = sentinels.into_iter().map(open).collect::<Result<_, _>>()?;
        let (master, server, limit) = (master.to_owned(), open(server)?, self.options.timeout);
        Ok(ServerLocator::Sentinels(Sentinels { sentinels, master, server, limit }))
    }

    async fn cluster(self) -> Result<RedisDriver, Error> {
        let infos = self.hosts.iter().map(|host| self.info(host, &self.login, &self.path));
        let infos = infos.collect::<Result<Vec<_>, _>>()?;
        let nodes = infos.into_iter().map(Client::open).collect::<Result<Vec<_>, _>>();
        self.options.cluster(nodes.map_err(config_error)?).await
    }
}

/// The client crate's error about a URL or a setting. It does not repeat the URL.
fn config_error(error: redis::RedisError) -> Error {
    Error::Config(format!("redis: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<RedisUrl, Error> {
        RedisUrl::parse(url, RedisOptions::default())
    }

    #[test]
    fn urls_are_taken_apart() {
        let server = parse("rediss://u:p%40@h:1/3?strict&timeout=500ms&protocol=resp3").unwrap();
        assert_eq!((server.kind, server.tls, server.path.as_str()), (UrlKind::Single, true, "/3"));
        assert!(server.options.strict);
        assert_eq!(server.options.timeout, Duration::from_millis(500));
        let info = server.info(&server.hosts[0], &server.login, &server.path).unwrap();
        assert_eq!((info.redis_settings().db(), info.redis_settings().password()), (3, Some("p@")));
        let server = parse("redis+sentinel://:p@a:1,b:2/shop/2?min_replicas=1").unwrap();
        assert_eq!((server.kind, server.hosts.len()), (UrlKind::Sentinel, 2));
        assert!(
            matches!(server.sentinel().unwrap(), ServerLocator::Sentinels(it) if it.master == "shop")
        );
        assert_eq!(parse("redis+sentinel://a,b:2/shop").unwrap().hosts, ["a:26379", "b:2"]);
        let server = parse("redis+cluster://a:1,b:2,c:3").unwrap();
        assert_eq!((server.kind, server.hosts.len()), (UrlKind::Cluster, 3));
    }

    #[test]
    fn what_cannot_work_is_refused_without_showing_the_password() {
        for bad in [
            "redis:secret@h",
            "http://u:secret@h",
            "redis://u:secret@a,b",
            "redis+sentinel://u:secret@a:1",
            "redis://u:secret@h?tiemout=1s",
            "redis://u:secret@h?timeout=1ms",
            "redis://u:secret@h?min_replicas=many",
            "redis://u:secret@h?strict=perhaps",
            "redis://u:secret@h?neighbours=us",
            "redis+cluster://u:secret@h?neighbours=set-nx",
        ] {
            let message = parse(bad).map(drop).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
        }
        let server = parse("redis://u:secret@h:port").unwrap();
        let message = server.info(&server.hosts[0], &server.login, "").unwrap_err().to_string();
        assert!(!message.contains("secret"), "{message}");
    }

    /// The client crate reads them for the sockets of a machine, and skips them for others.
    #[test]
    fn a_database_or_a_login_in_the_query_is_refused_and_what_to_write_is_named() {
        for (option, instead) in [
            ("db=3", "/DB"),
            ("user=u", "USER:PASSWORD@"),
            ("pass=secret", "USER:PASSWORD@"),
            ("timeout=1s&db=0", "/DB"),
        ] {
            for url in ["redis://h", "rediss://h", "redis+sentinel://h/shop", "redis+cluster://h"] {
                let message = parse(&format!("{url}?{option}")).map(drop).unwrap_err().to_string();
                assert!(message.contains(instead), "{message}");
                assert!(!message.contains("secret"), "{message}");
            }
        }
    }

    #[test]
    fn a_url_is_checked_without_a_server() {
        for good in [
            "redis://u:p@nowhere.invalid:1/3?timeout=1s&strict&protocol=resp3",
            "redis+sentinel://a:1,b/shop/2?sentinel_login=x:y&min_replicas=1",
            "rediss+cluster://a:1,b:2",
        ] {
            assert!(RedisDriver::check_url(good).is_ok(), "{good}");
        }
        for bad in ["redis://h?ttl=1s", "redis://h:port", "redis+cluster://a:1,b:x"] {
            assert!(RedisDriver::check_url(bad).is_err(), "{bad}");
        }
    }
}
