//! The memory driver: all cases on a paused clock, and those about the driver on the
//! machine's.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_conformance::{Harness, Time};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, MemoryDriver};

struct Memory {
    driver: MemoryDriver,
    time: Time,
}

impl Memory {
    fn on(time: Time) -> Self {
        let driver = MemoryDriver::new();
        Self { driver, time }
    }
}

#[async_trait]
impl Harness for Memory {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(self.driver.clone()))
    }

    fn time(&self) -> Time {
        self.time
    }
}

mod real_time {
    use super::*;
    lockkit_conformance::suite!(driver: Memory::on(Time::Real));
}

mod paused_time {
    use super::*;
    lockkit_conformance::suite!(Memory::on(Time::Paused));
}
