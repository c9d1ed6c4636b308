//! The mirror over two memory stores: all cases that apply.

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_compose::MirrorDriver;
use lockkit_conformance::{Harness, Time};
use lockkit_core::driver::LockDriver;
use lockkit_core::{Error, MemoryDriver};

#[derive(Default)]
struct Mirror {
    old: MemoryDriver,
    new: MemoryDriver,
}

#[async_trait]
impl Harness for Mirror {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(MirrorDriver::new(Arc::new(self.old.clone()), Arc::new(self.new.clone()))))
    }

    fn time(&self) -> Time {
        Time::Paused
    }
}

lockkit_conformance::suite!(Mirror::default());
