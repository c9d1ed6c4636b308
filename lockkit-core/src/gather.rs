//! Flights for a program that carries the claims of others: a server between many clients and one
//! backend.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::Error;
use crate::clock::Moment;
use crate::collector::{Answer, Collector};
use crate::driver::{LockDriver, Replies, Step};

/// Gathers the steps of many callers into flights, as a manager does with those of its tasks.
/// Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # use std::{sync::Arc, time::Duration};
/// # use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Space};
/// # fn claim(name: &str, mode: Mode) -> Result<Arc<Claim>, lockkit_core::Error> {
/// #     let key = Key::new(Namespace::default(), mode.space(), Name::new(name)?);
/// #     let (hold, wait) = (Duration::from_secs(30), Duration::from_secs(10));
/// #     let me = Arc::new(ClientIdentity::of_this_process());
/// #     Ok(Arc::new(Claim::new(key, mode, hold, wait, me)))
/// # }
/// use lockkit_core::clock::{BootClock, Clock};
/// use lockkit_core::driver::{Gather, LockDriver, Patience, Step};
/// use lockkit_core::MemoryDriver;
///
/// // A server keeps one for all its clients.
/// let driver = Arc::new(MemoryDriver::new());
/// let gather = Gather::new(driver.clone());
/// let step = Step::Acquire { claim: claim("nightly", Mode::Exclusive)?, patience: Patience::Try };
/// let latest = driver.clock().now().after(Duration::from_secs(1));
/// let replies = gather.carry(&[step], latest).await;
/// assert!(replies[0].is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Gather {
    driver: Arc<dyn LockDriver>,
    collector: Arc<Collector>,
}

impl Gather {
    /// Flights of this driver.
    pub fn new(driver: Arc<dyn LockDriver>) -> Self {
        Self { collector: Collector::new(driver.clone()), driver }
    }

    /// Carries steps of different claims, together with those of other callers, and answers each by
    /// itself, in order. A step that has not departed at `latest` never does: its answer is a
    /// retryable error.
    ///
    /// # Cancel safety
    /// What has not departed never does; the rest may have been carried out.
    pub async fn carry(&self, steps: &[Step], latest: Moment) -> Replies {
        if steps.len() > 1 {
            self.collector.gather();
        }
        let carry = async |step: &Step| {
            let mut asking = self.collector.step(step.clone(), Some(latest));
            match asking.answer().await? {
                Some(Answer { reply, .. }) => reply,
                None => {
                    let backend = self.driver.capabilities().backend;
                    Err(Error::retryable(
                        backend,
                        "too many requests are under way: nothing was sent",
                    ))
                }
            }
        };
        join_all(steps.iter().map(carry)).await
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("driver", &self.driver).finish_non_exhaustive()
    }
}
