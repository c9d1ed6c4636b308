//! A fault injector for several servers that make one service without knowing of each other: strikes at
//! one of them at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::server::ServerInjector;
use super::{FaultInjector, Target};

/// Strikes at a minority: one of these members at a time.
#[derive(Debug)]
pub struct MembersInjector {
    members: Vec<ServerInjector>,
    rng: Mutex<StdRng>,
    rest: Duration,
}

impl MembersInjector {
    /// Which of the members is struck follows from the seed. One that lost its data is away for
    /// another while, in which no other is struck: `rest` says for how long.
    pub fn new(members: Vec<ServerInjector>, seed: u64, rest: Duration) -> Self {
        Self { members, rng: Mutex::new(StdRng::seed_from_u64(seed)), rest }
    }
}

/// What tells one member from another in a history.
fn address(member: &ServerInjector) -> String {
    member.server().addr().to_string()
}

#[async_trait]
impl FaultInjector for MembersInjector {
    fn faults(&self) -> Vec<Fault> {
        self.members.first().map(FaultInjector::faults).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.members.iter().map(FaultInjector::log).collect::<Vec<_>>().join("\n")
    }

    async fn aim(&self, _: Fault, _: &[String]) -> Target {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let victim = &self.members[rng.random_range(0..self.members.len())];
        Target::whole(address(victim))
    }

    async fn inject(&self, fault: Fault, lasts: Duration, target: &Target) {
        let Some(victim) = self.members.iter().find(|m| address(m) == target.on) else { return };
        victim.inject(fault, lasts, target).await;
        if fault == Fault::DataLost {
            tokio::time::sleep(self.rest).await;
        }
    }
}
