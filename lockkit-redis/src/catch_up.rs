//! What claims that wait missed while the subscription was away. How they are told is in `wake`.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{BootClock, Clock};
use lockkit_core::driver::{Grant, Renewal};

use crate::driver::Shared;
use crate::link::Link;
use crate::nodes;
use crate::source::Source;
use crate::wake::{Listener, Wakes};

impl Listener for Shared {
    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    fn source(&self) -> Arc<Source> {
        self.source.clone()
    }

    fn limit(&self) -> Duration {
        self.limit
    }

    async fn catch_up(&self) {
        self.wakes.ring_registers(None);
        let waiters = self.wakes.all();
        let claims: Vec<_> = waiters.iter().map(|waiter| waiter.claim.clone()).collect();
        let sent = BootClock.now();
        for (waiter, answer) in waiters.iter().zip(self.renew(&claims).await) {
            match answer {
                Ok(Renewal::Holds(grant)) => waiter.grant(Grant { since: Some(sent), ..grant }),
                Ok(Renewal::Waits { .. }) => {}
                // It may be on its way into the line at this very moment: let it ask.
                Ok(Renewal::Ended(_)) | Err(_) => waiter.look_in(Duration::ZERO),
            }
        }
        // The nodes of a cluster come and go; the next subscription may be at any of them.
        if let Link::Cluster(_) = self.link
            && let Ok(nodes) = nodes::masters(self).await
        {
            self.source.learn(nodes.into_iter().flatten());
        }
    }
}
