//! A fault injector for a primary with a standby: the primary dies, the standby takes over, and the server
//! that died becomes the standby.

use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::{FaultInjector, Target};
use crate::{LabError, Pair, Proxy, Replication};

/// Strikes at the primary of a pair, whose clients go through a proxy.
#[derive(Debug)]
pub(super) struct PairInjector {
    pair: Pair,
    proxy: Proxy,
    /// Whether the standby misses what is written for a while before.
    lags: bool,
}

impl PairInjector {
    pub(super) fn new(pair: Pair, proxy: Proxy, replication: Replication) -> Self {
        Self { pair, proxy, lags: replication == Replication::PostgresAsynchronous }
    }

    async fn fail_over(&self, lasts: Duration) -> Result<(), LabError> {
        if self.lags {
            self.pair.cut_off().await?;
        }
        tokio::time::sleep(lasts).await;
        self.pair.primary().kill().await;
        self.pair.promote().await?;
        self.proxy.lead_to(&[self.pair.primary().addr()]);
        self.pair.rejoin().await
    }
}

#[async_trait]
impl FaultInjector for PairInjector {
    fn faults(&self) -> Vec<Fault> {
        vec![Fault::Failover]
    }

    fn log(&self) -> String {
        [self.pair.primary(), self.pair.replica()].map(crate::Server::log_tail).join("\n")
    }

    async fn aim(&self, _: Fault, _: &[String]) -> Target {
        Target::whole(self.pair.primary().name())
    }

    async fn inject(&self, _: Fault, lasts: Duration, _: &Target) {
        // The storm goes on when a strike fails; its report shows what did not work afterwards.
        if let Err(error) = self.fail_over(lasts).await {
            eprintln!("storm: the standby did not take over: {error}");
        }
    }
}
