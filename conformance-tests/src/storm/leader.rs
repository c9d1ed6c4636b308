//! A saboteur for a group of servers that has a leader: kills it, or has it stand still, so that the
//! others elect another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::Saboteur;
use crate::lab::{Data, Group, LabError};

/// Strikes at the leader of a group.
#[derive(Debug)]
pub struct LeaderSaboteur {
    group: Group,
    fault: Fault,
    /// Killed and frozen in turn.
    kills: AtomicBool,
}

impl LeaderSaboteur {
    /// Strikes at the leader of this group. What that costs is `LeaderLost` in a majority, and
    /// `Failover` where a replica may lag.
    pub fn new(group: Group, fault: Fault) -> Self {
        Self { group, fault, kills: AtomicBool::new(true) }
    }

    async fn lose_leader(&self, lasts: Duration) -> Result<(), LabError> {
        let leader = self.group.leader().await?;
        if self.kills.fetch_xor(true, Ordering::Relaxed) {
            leader.kill().await;
            tokio::time::sleep(lasts).await;
            leader.launch(Data::Keep).await?;
        } else {
            leader.freeze().await;
            tokio::time::sleep(lasts).await;
            leader.thaw();
        }
        self.group.complete().await
    }
}

#[async_trait]
impl Saboteur for LeaderSaboteur {
    fn faults(&self) -> Vec<Fault> {
        vec![self.fault]
    }

    fn log(&self) -> String {
        let logs = self.group.members().iter().map(|m| format!("{}:\n{}", m.name(), m.log_tail()));
        logs.collect::<Vec<_>>().join("\n")
    }

    async fn strike(&self, _: Fault, lasts: Duration) {
        // The storm goes on when a strike fails; its report shows what did not work afterwards.
        if let Err(error) = self.lose_leader(lasts).await {
            eprintln!("storm: the leader was not lost, or did not come back: {error}");
        }
    }
}
