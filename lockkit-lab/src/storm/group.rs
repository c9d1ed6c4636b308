//! A fault injector for a group of servers, with a proxy between it and its clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;

use super::{FaultInjector, Target};
use crate::proxy::{self, When};
use crate::{Data, Group, LabError, Layout, Proxy, Server};

/// Strikes at one member of a Redis group at a time, and at the network before all of them.
#[derive(Debug)]
pub struct GroupInjector {
    group: Group,
    proxy: Proxy,
    /// How many strikes there were at members: they have turns.
    faults: AtomicUsize,
    /// Whether the old leader lives on when another takes over.
    splits: bool,
}

impl GroupInjector {
    /// Strikes at this group, whose clients go through this proxy.
    pub fn new(group: Group, proxy: Proxy) -> Self {
        Self { group, proxy, faults: AtomicUsize::new(0), splits: false }
    }

    /// The same, but leaders stand still instead of dying: two serve for a while after each
    /// failover.
    pub fn that_splits(mut self) -> Self {
        self.splits = true;
        self
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    fn turn(&self) -> usize {
        self.faults.fetch_add(1, Ordering::Relaxed)
    }

    /// Those of these locks that may live at this master: all that no other one is seen to have.
    async fn locks_at(&self, master: &Server, locks: &[String]) -> Result<Vec<String>, LabError> {
        let others = self.group.members().iter().filter(|m| m.addr() != master.addr());
        let mut elsewhere = Vec::new();
        for other in others.filter(|other| other.is_awake()) {
            if self.group.is_master(other).await? {
                elsewhere.extend(self.group.keys_of(other).await?);
            }
        }
        let is_elsewhere = |lock: &&String| {
            let end = format!(":{lock}");
            elsewhere.iter().any(|key| key.ends_with(&end))
        };
        Ok(locks.iter().filter(|lock| !is_elsewhere(lock)).cloned().collect())
    }

    async fn try_to_aim(&self, fault: Fault, locks: &[String]) -> Result<Target, LabError> {
        if matches!(fault, Fault::Partition | Fault::ConnectionCut) {
            return Ok(Target::whole("network"));
        }
        let victim = self.victim(self.faults.load(Ordering::Relaxed)).await?;
        let locks = match self.group.layout().divides_its_keys() {
            true => self.locks_at(victim, locks).await?,
            false => Vec::new(),
        };
        Ok(Target { on: victim.name(), locks })
    }

    /// The next member in turn; where only one leads, that one.
    async fn victim(&self, turn: usize) -> Result<&Server, LabError> {
        match self.group.layout() {
            Layout::RedisSentinel => self.group.leader().await,
            Layout::RedisClusterWithReplicas => self.group.holder_of(&some_key(turn)).await,
            _ => Ok(&self.group.members()[turn % self.group.members().len()]),
        }
    }

    /// One that leads dies, or stands still, until another leads in its place; then it is back.
    async fn fail_over(&self, turn: usize, dies: bool) -> Result<(), LabError> {
        self.group.hurry().await?;
        let victim = self.victim(turn).await?;
        match dies {
            true => victim.kill().await,
            false => victim.freeze().await,
        }
        // It is not awake, so this waits for another one.
        let next = self.victim(turn).await;
        match dies {
            true => victim.launch(Data::Keep).await?,
            false => victim.thaw(),
        }
        next?;
        self.group.complete().await?;
        self.group.calm().await
    }

    /// The slot of some key moves to another master while its locks are in use.
    async fn move_a_slot(&self, turn: usize) -> Result<(), LabError> {
        let key = match self.group.key_with("lockkit:lock:").await? {
            Some(key) => key,
            None => some_key(turn),
        };
        let moving = self.group.begin_to_move(&key).await?;
        while moving.one_key().await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        moving.finish().await
    }

    async fn try_to_inject(&self, fault: Fault, lasts: Duration) -> Result<(), LabError> {
        let turn = self.turn();
        match fault {
            Fault::Failover => self.fail_over(turn, true).await,
            Fault::SplitBrain => self.fail_over(turn, false).await,
            Fault::ServerPaused => {
                let victim = self.victim(turn).await?;
                victim.freeze().await;
                tokio::time::sleep(lasts).await;
                victim.thaw();
                self.group.complete().await
            }
            Fault::ServerRestarts => {
                self.victim(turn).await?.restart(Data::Keep).await?;
                self.group.complete().await
            }
            Fault::ConnectionCut => {
                self.proxy.fault(proxy::ProxyFault::Cut, When::Now);
                // No fault by itself, and no promise is weaker for it.
                match self.group.layout() {
                    Layout::RedisCluster => self.move_a_slot(turn).await,
                    _ => Ok(()),
                }
            }
            _ => {
                self.proxy.fault(proxy::ProxyFault::BlackHole, When::Now);
                tokio::time::sleep(lasts).await;
                self.proxy.heal().await
            }
        }
    }
}

/// A key in a slot that depends on the turn.
fn some_key(turn: usize) -> String {
    format!("{{{turn}}}")
}

#[async_trait]
impl FaultInjector for GroupInjector {
    fn faults(&self) -> Vec<Fault> {
        let mut faults = vec![Fault::ConnectionCut, Fault::Partition];
        match self.group.layout() {
            // Whatever befalls the one that leads, another may take its place.
            Layout::RedisSentinel | Layout::RedisClusterWithReplicas => {
                faults.push(if self.splits { Fault::SplitBrain } else { Fault::Failover });
            }
            _ => faults.extend([Fault::ServerPaused, Fault::ServerRestarts]),
        }
        faults
    }

    fn log(&self) -> String {
        let logs = self.group.members().iter().chain(self.group.sentinels());
        let logs: Vec<_> = logs.map(|s| format!("{}:\n{}", s.name(), s.log_tail())).collect();
        logs.join("\n")
    }

    async fn aim(&self, fault: Fault, locks: &[String]) -> Target {
        let target = self.try_to_aim(fault, locks).await;
        target.unwrap_or_else(|error| Target::whole(error.to_string()))
    }

    async fn inject(&self, fault: Fault, lasts: Duration, _: &Target) {
        if let Err(error) = self.try_to_inject(fault, lasts).await {
            eprintln!("storm: {fault:?} was not staged as it should be: {error}");
        }
    }
}
