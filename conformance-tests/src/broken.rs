//! Drivers that are wrong on purpose, and for each the case that was made to catch it. They show
//! that the suite can fail. No case knows of them.

mod bugs;
mod caught;
mod inspection;
mod methods;
mod registers;
mod renewal;
mod toy;

pub use bugs::InjectedBug;
pub use caught::{BUGS, Caught};
pub use toy::Toy;

use std::sync::Arc;

use async_trait::async_trait;
use lockkit_core::Error;
use lockkit_core::driver::LockDriver;

use crate::harness::{Harness, Time};

/// A harness over a [`Toy`]: on a paused clock, so that waiting for what never comes takes no time.
#[derive(Debug)]
pub struct ToyHarness(Toy);

impl ToyHarness {
    /// With a toy that has no bug.
    pub fn sound() -> Self {
        Self(Toy::sound())
    }

    /// With a toy that has this bug.
    pub fn with(bug: InjectedBug) -> Self {
        Self(Toy::with(bug))
    }
}

#[async_trait]
impl Harness for ToyHarness {
    async fn driver(&self) -> Result<Arc<dyn LockDriver>, Error> {
        Ok(Arc::new(self.0.session()))
    }

    fn time(&self) -> Time {
        Time::Paused
    }

    async fn leftovers(&self, namespace: &lockkit_core::Namespace) -> Result<Option<u64>, Error> {
        Ok(Some(self.0.entries(namespace)))
    }
}
