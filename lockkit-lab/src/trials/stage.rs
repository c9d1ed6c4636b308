//! What a trial has in its hands: a server, proxies before it, drivers through them and past them.
//! Knows nothing of locks.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::capabilities::{Fault, Guarantee};
use lockkit_core::driver::LockDriver;

use crate::Deployment;
use crate::proxy::Proxy;
use crate::{Group, LabError, Layout, Server, SharedServer};
use lockkit_conformance::context::CaseContext;
use lockkit_conformance::{Harness, Worker};

use super::servers::TrialServers;
use super::{NotApplicable, scene};

/// What a trial stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A server that others use at the same time: nothing is done to it.
    Shared,
    /// A server of its own.
    Own,
    /// The same with a clock that can be moved; plain where there is none.
    OwnWithClock,
    /// It starts what it needs by itself.
    Nothing,
}

/// The stage of one trial. What it started ends with it.
pub struct TrialSetup {
    site: Arc<dyn Deployment>,
    context: CaseContext,
    servers: Option<TrialServers>,
    addr: SocketAddr,
    url_at: Box<dyn Fn(SocketAddr) -> String + Send + Sync>,
}

impl TrialSetup {
    pub(super) async fn set(site: Arc<dyn Deployment>, ground: Ground) -> Result<Self, String> {
        let clock = ground == Ground::OwnWithClock;
        let stage = match (site.layout(), ground) {
            (Some(layout), _) => Self::on_group(site, layout, clock).await,
            (None, Ground::Shared) if site.is_member() => Self::on_own(site, false).await,
            (None, Ground::Shared | Ground::Nothing) => Self::on_shared(site).await,
            (None, _) => Self::on_own(site, clock).await,
        };
        stage.map_err(|e| e.to_string())
    }

    async fn on_shared(site: Arc<dyn Deployment>) -> Result<Self, Box<dyn std::error::Error>> {
        let shared = SharedServer::server(site.kind()).await?;
        let (url, addr) = (shared.url().to_owned(), shared.addr());
        let context = Self::bench_at(&site, url).await?;
        let url_at = Box::new(move |addr| shared.url_at(addr));
        Ok(Self { site, context, servers: None, addr, url_at })
    }

    async fn on_own(
        site: Arc<dyn Deployment>,
        clock: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let kind = site.kind();
        let server = match clock && kind.has_movable_clock() {
            true => Server::start_with_clock(kind).await?,
            false => Server::start(kind).await?,
        };
        let context = Self::bench_at(&site, server.url()).await?;
        let addr = server.addr();
        let url = server.url();
        let url_at = Box::new(move |proxy: SocketAddr| {
            url.replacen(&addr.to_string(), &proxy.to_string(), 1)
        });
        Ok(Self { site, context, servers: Some(TrialServers::One(server)), addr, url_at })
    }

    async fn on_group(
        site: Arc<dyn Deployment>,
        layout: Layout,
        clocks: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let group = match clocks {
            true => Group::start_with_clocks(layout).await?,
            false => Group::start(layout).await?,
        };
        let context = Self::bench_at(&site, group.url()).await?;
        let addr = group.members()[0].addr();
        let url_at = Box::new(|_| unreachable!("a group is reached through its own proxy"));
        Ok(Self { site, context, servers: Some(TrialServers::Group(group)), addr, url_at })
    }

    async fn bench_at(site: &Arc<dyn Deployment>, url: String) -> Result<CaseContext, Error> {
        let url = url + site.options();
        CaseContext::new(Arc::new(At { site: site.clone(), url })).await
    }

    /// The site.
    pub fn site(&self) -> &dyn Deployment {
        &*self.site
    }

    /// A context whose drivers reach the server past all proxies.
    pub fn context(&self) -> &CaseContext {
        &self.context
    }

    /// A context over another place that the site's driver reaches: a group of servers.
    ///
    /// # Panics
    /// When the driver cannot be made.
    pub async fn bench_over(&self, url: String) -> CaseContext {
        let context = Self::bench_at(&self.site, url).await;
        context.expect("the driver connects to a group that is complete")
    }

    /// The trial's own server, or group of servers.
    ///
    /// # Panics
    /// When the trial stands on a shared one.
    pub fn server(&self) -> &TrialServers {
        self.servers.as_ref().expect("the trial has a server of its own")
    }

    /// The trial's own group, where the site has one.
    pub fn group(&self) -> Option<&Group> {
        match &self.servers {
            Some(TrialServers::Group(group)) => Some(group),
            _ => None,
        }
    }

    /// What is promised under a fault of the server: in a group that may choose another leader
    /// meanwhile, no more than is kept then.
    pub(super) fn guarantee(&self, fault: Fault) -> Result<Guarantee, NotApplicable> {
        let kept = scene::guarantee(&self.context, fault)?;
        match self.group().map(Group::layout) {
            Some(Layout::RedisSentinel | Layout::RedisClusterWithReplicas) => {
                Ok(kept.min(scene::guarantee(&self.context, Fault::Failover)?))
            }
            _ => Ok(kept),
        }
    }

    /// A proxy of its own before the server.
    ///
    /// # Panics
    /// When none can be started.
    pub async fn proxy(&self) -> Proxy {
        let protocol = self.site.protocol();
        let proxy = match self.group() {
            Some(group) => group.proxy(protocol).await,
            None => Proxy::start(self.addr, protocol).await,
        };
        proxy.expect("a proxy can be started")
    }

    /// Tries to make a driver of its own through this proxy.
    ///
    /// # Errors
    /// The driver's.
    pub async fn connect(&self, proxy: &Proxy) -> Result<Arc<dyn LockDriver>, Error> {
        let url = match self.group() {
            Some(group) => group.url_through(proxy),
            None => (self.url_at)(proxy.addr()),
        };
        self.connect_to(url).await
    }

    /// Tries to make a driver of its own onto this URL.
    ///
    /// # Errors
    /// The driver's.
    pub async fn connect_to(&self, url: String) -> Result<Arc<dyn LockDriver>, Error> {
        self.site.connect(&(url + self.site.options())).await
    }

    /// A driver of its own through this proxy.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn through(&self, proxy: &Proxy) -> Arc<dyn LockDriver> {
        self.connect(proxy).await.expect("the driver connects through a proxy in good order")
    }
}

/// The site's driver at one place, for contexts.
struct At {
    site: Arc<dyn Deployment>,
    url: String,
}

#[async_trait]
impl Harness for At {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        self.site.connect(&self.url).await
    }

    fn worker(&self) -> Option<Worker> {
        let program = self.site.worker()?;
        Some(Worker { program, url: self.url.clone() })
    }
}

/// The lab's failures are no verdict on the driver, but end the trial.
pub(super) fn staged<T>(result: Result<T, LabError>) -> T {
    result.unwrap_or_else(|e| panic!("the fault could not be staged: {e}"))
}
