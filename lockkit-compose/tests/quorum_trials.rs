//! The quorum on three Redis servers: what its operations cost at a member, what happens when a
//! member or the way to it misbehaves, and when a majority is gone.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use lockkit_core::capabilities::Fault;
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, LossReason};
use lockkit_lab::proxy::{Protocol, Proxy};
use lockkit_lab::raw::resp;
use lockkit_lab::{Costs, Deletion, Site};
use lockkit_lab::{Data, Kind, Server};
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
        let server = Server::start(Kind::Redis).await.map_err(|e| Error::permanent("lab", e))?;
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

/// Longer leases than any trial asks for. Members that do not answer cost two seconds.
const OPTIONS: &str = "?longest_ttl=1h&member_limit=2s";

#[async_trait]
impl Site for Quorum {
    fn kind(&self) -> Kind {
        Kind::Redis
    }

    fn is_member(&self) -> bool {
        true
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockDriver>, Error> {
        let starting = || try_join_all((0..2).map(|_| Other::start()));
        let others = self.others.get_or_try_init(starting).await?;
        let others: Vec<_> = others.iter().map(Other::url).collect();
        let locks =
            lockkit::connect(&format!("quorum:{url},{}{OPTIONS}", others.join(","))).await?;
        Ok(locks.driver().clone())
    }

    /// At each member. Try, and then raise beside a look whether it has its data.
    fn costs(&self) -> Costs {
        let mut costs = Costs::BUDGET;
        (costs.acquire, costs.granted_try) = (2, 2);
        (costs.acquire_shared, costs.first_use) = (2, 2);
        // Who waits tries again, which is an acquire.
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

/// Two of three do not answer.
async fn without_a_majority(begin: impl AsyncFn(&Server), end: impl AsyncFn(&Server)) {
    let servers = try_join_all((0..3).map(|_| Server::start(Kind::Redis))).await.unwrap();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    let url = format!("quorum:{}?ttl=10s&wait_ttl=10s&longest_ttl=1h", urls.join(","));
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
