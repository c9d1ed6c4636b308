//! The quorum on three Redis servers: what its operations cost at a member, what happens when a
//! member or the way to it misbehaves, and when a majority is gone.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, LossReason};
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::raw::resp;
use lockkit_lab::{Costs, Deletion, Deployment};
use lockkit_lab::{Data, Server, ServerKind};
use tokio::sync::OnceCell;

/// The trials' server and two others, which nothing is done to.
#[derive(Default)]
struct Quorum {
    others: OnceCell<Vec<Other>>,
}

/// It answers a little later than any other behind a trial's proxy: so every majority has the
/// trial's server in it, and what is counted there is what an operation waits for.
struct Other {
    server: Server,
    proxy: Proxy,
}

impl Other {
    async fn start() -> Result<Self, Error> {
        let server =
            Server::start(ServerKind::Redis).await.map_err(|e| Error::permanent("lab", e))?;
        keep_writes(server.addr()).await.map_err(|e| Error::permanent("lab", e))?;
        let proxy = Proxy::start(server.addr(), Protocol::Resp).await;
        let proxy = proxy.map_err(|e| Error::permanent("lab", e))?;
        proxy.latency(Duration::from_millis(15));
        Ok(Self { server, proxy })
    }

    fn url(&self) -> String {
        let server = self.server.addr().to_string();
        self.server.url().replacen(&server, &self.proxy.addr().to_string(), 1)
    }
}

/// From now on no write is lost that the server has acknowledged.
async fn keep_writes(server: SocketAddr) -> io::Result<()> {
    resp::ask(server, &["CONFIG", "SET", "appendfsync", "always"]).await?;
    resp::ask(server, &["CONFIG", "REWRITE"]).await.map(drop)
}

/// Longer leases than any trial asks for. Members that do not answer cost two seconds.
const OPTIONS: &str = "?max_ttl=1h&member_limit=2s";

#[async_trait]
impl Deployment for Quorum {
    fn kind(&self) -> ServerKind {
        ServerKind::Redis
    }

    fn is_member(&self) -> bool {
        true
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let starting = || try_join_all((0..2).map(|_| Other::start()));
        let others = self.others.get_or_try_init(starting).await?;
        let others: Vec<_> = others.iter().map(Other::url).collect();
        // Restarts of the trials lose nothing. One that is away was told before.
        let trial = url.trim_start_matches("redis://").split(['/', '?']).next();
        if let Some(Ok(trial)) = trial.map(str::parse) {
            let _ = tokio::time::timeout(Duration::from_secs(2), keep_writes(trial)).await;
        }
        let locks =
            lockkit::connect(&format!("quorum:{url},{}{OPTIONS}", others.join(","))).await?;
        Ok(locks.driver().clone())
    }

    /// At each member. Try, and then raise beside a look whether it has its data.
    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        (costs.acquire, costs.granted_try) = (2, 2);
        (costs.acquire_shared, costs.first_use) = (2, 2);
        // A claim that was granted in its queue runs the round of an acquire.
        costs.look_when_woken = 2;
        costs
    }

    fn deletions(&self) -> Vec<Deletion> {
        vec![
            Deletion { what: "SCRIPT FLUSH", fault: None, act: |s| ask(s, &["SCRIPT", "FLUSH"]) },
            Deletion {
                what: "FLUSHALL at one member",
                fault: Some(Fault::DataLost),
                act: |s| ask(s, &["FLUSHALL"]),
            },
        ]
    }
}

fn ask<'a>(server: &'a Server, words: &'static [&'static str]) -> BoxFuture<'a, io::Result<()>> {
    Box::pin(async move { resp::ask(server.addr(), words).await.map(drop) })
}

lockkit_lab::trials!(Quorum::default());

async fn durable_servers() -> Vec<Server> {
    let servers = try_join_all((0..3).map(|_| Server::start(ServerKind::Redis))).await.unwrap();
    for server in &servers {
        keep_writes(server.addr()).await.unwrap();
    }
    servers
}

/// Two of three do not answer.
async fn without_a_majority(begin: impl AsyncFn(&Server), end: impl AsyncFn(&Server)) {
    let servers = durable_servers().await;
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let url = format!("quorum:{}?ttl=10s&wait_ttl=10s&max_ttl=1h", urls.join(","));
    let (ours, theirs) = tokio::try_join!(lockkit::connect(&url), lockkit::connect(&url)).unwrap();
    let guard = ours.mutex("a").lock().await.unwrap();
    let token = guard.token();
    for server in &servers[1..] {
        begin(server).await;
    }
    let error = theirs.mutex("b").try_lock().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let waiting = tokio::spawn(async move { theirs.mutex("a").lock().await });
    assert!(matches!(guard.lost().await, LossReason::Unreachable(_)));
    assert!(guard.token().is_err() && !waiting.is_finished());
    for server in &servers[1..] {
        end(server).await;
    }
    let next = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    let next = next.expect("it gets its turn").unwrap().unwrap();
    // A slow machine may take the lease away at once; the tokens grow all the same.
    if let (Ok(next), Ok(token)) = (next.token(), token) {
        assert!(next > token);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn robust_03_a_majority_is_killed_and_restarted() {
    let restart = async |server: &Server| server.restart(Data::Keep).await.unwrap();
    without_a_majority(async |server| server.kill().await, restart).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn robust_04_a_majority_stands_still() {
    without_a_majority(async |server| server.freeze().await, async |server| server.thaw()).await;
}

/// A quarantine would last for an hour here.
#[tokio::test(flavor = "multi_thread")]
async fn robust_05_durable_members_are_restarted_one_by_one_without_a_pause() {
    let servers = durable_servers().await;
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let url = format!("quorum:{}?ttl=30s&max_ttl=1h&member_limit=5s", urls.join(","));
    let locks = lockkit::connect(&url).await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    for (round, server) in servers.iter().enumerate() {
        server.restart(Data::Keep).await.unwrap();
        let next = lockkit::connect(&url).await.unwrap();
        for locks in [&locks, &next] {
            let other = locks.mutex(format!("b{round}")).lock().await.unwrap();
            other.release().await.unwrap();
        }
        let found = next.health().await.unwrap().findings;
        assert!(!found.iter().any(|f| f.what.contains("may have lost data")), "{found:?}");
        assert!(next.mutex("a").try_lock().await.unwrap().is_none(), "it is held");
        assert!(guard.is_valid());
    }
    guard.release().await.unwrap();
}

/// With snapshots only, as Redis comes: a member is killed, and comes back without the claim that it
/// had granted since the last one.
#[tokio::test(flavor = "multi_thread")]
async fn robust_06_a_member_comes_back_with_an_older_snapshot() {
    let servers = try_join_all((0..3).map(|_| Server::start(ServerKind::Redis))).await.unwrap();
    let [holds, forgets, away] = &servers[..] else { panic!("three were started") };
    let tell = async |words: &[&str]| resp::ask(forgets.addr(), words).await.unwrap();
    tell(&["CONFIG", "SET", "appendonly", "no"]).await;
    tell(&["CONFIG", "REWRITE"]).await;
    keep_writes(away.addr()).await.unwrap();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let url = format!("quorum:{}?ttl=6s&max_ttl=6s", urls.join(","));
    let (ours, theirs) = tokio::try_join!(lockkit::connect(&url), lockkit::connect(&url)).unwrap();
    for locks in [&ours, &theirs] {
        locks.mutex("before").lock().await.unwrap().release().await.unwrap();
    }
    tell(&["SAVE"]).await;
    away.kill().await;
    let guard = ours.mutex("a").lock().await.unwrap();
    forgets.restart(Data::Keep).await.unwrap();
    away.restart(Data::Keep).await.unwrap();
    // Two of three members know nothing of the holder.
    let two = theirs.mutex("a").try_lock().await;
    assert!(!matches!(two, Ok(Some(_))), "two hold, and one is valid: {}", guard.is_valid());
    drop(guard);
    let quarantined = async || {
        let found = theirs.health().await.unwrap().findings;
        found.iter().any(|f| f.what.contains("may have lost data"))
    };
    assert!(quarantined().await);
    while quarantined().await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    holds.kill().await;
    let next = tokio::time::timeout(Duration::from_secs(60), theirs.mutex("a").lock()).await;
    next.expect("it votes again").unwrap().release().await.unwrap();
}
