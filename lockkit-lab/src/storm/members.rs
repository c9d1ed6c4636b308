//! A saboteur for several servers that make one service without knowing of each other: strikes at
//! one of them at a time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_core::capabilities::Fault;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::Saboteur;
use super::server::ServerSaboteur;

/// Strikes at a minority: one of these members at a time.
#[derive(Debug)]
pub struct MembersSaboteur {
    members: Vec<ServerSaboteur>,
    rng: Mutex<StdRng>,
    rest: Duration,
}

impl MembersSaboteur {
    /// Which of the members is struck follows from the seed. One that lost its data is away for
    /// another while, in which no other is struck: `rest` says for how long.
    pub fn new(members: Vec<ServerSaboteur>, seed: u64, rest: Duration) -> Self {
        Self { members, rng: Mutex::new(StdRng::seed_from_u64(seed)), rest }
    }
}

#[async_trait]
impl Saboteur for MembersSaboteur {
    fn faults(&self) -> Vec<Fault> {
        self.members.first().map(Saboteur::faults).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.members.iter().map(Saboteur::log).collect::<Vec<_>>().join("\n")
    }

    async fn strike(&self, fault: Fault, lasts: Duration) {
        let victim = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            rng.random_range(0..self.members.len())
        };
        self.members[victim].strike(fault, lasts).await;
        if fault == Fault::DataLost {
            tokio::time::sleep(self.rest).await;
        }
    }
}
