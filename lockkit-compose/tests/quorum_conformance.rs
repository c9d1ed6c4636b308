//! The quorum over memory members: all cases that apply, with three members and with five.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkit_compose::{QuorumDriver, QuorumOptions};
use lockkit_conformance::{Harness, Time};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, MemoryDriver};

struct Quorum {
    members: Vec<MemoryDriver>,
}

impl Quorum {
    fn of(members: usize) -> Self {
        Self { members: (0..members).map(|_| MemoryDriver::new()).collect() }
    }
}

#[async_trait]
impl Harness for Quorum {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        let members = self.members.iter().map(|m| Arc::new(m.clone()) as Arc<dyn LockDriver>);
        let options = QuorumOptions::default().max_ttl(Duration::from_secs(10 * 365 * 86_400));
        Ok(Arc::new(QuorumDriver::new(members.collect(), options)?))
    }

    fn time(&self) -> Time {
        Time::Paused
    }
}

mod of_three {
    use super::*;
    lockkit_conformance::suite!(Quorum::of(3));
}

mod of_five {
    use super::*;
    lockkit_conformance::suite!(driver: Quorum::of(5));
}
