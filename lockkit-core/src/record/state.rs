//! What can be asked of a record: whether it waits, holds, is lost, and until when.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::loss::reason_of_the_end;
use super::{ClaimPhase, ClaimRecord, NEVER};
use crate::clock::sleep_until;
use crate::concurrency::once_there;
use crate::{Error, LossReason, Token};

impl ClaimRecord {
    pub(crate) fn token(&self) -> Result<Token, Error> {
        let now = self.clock.now();
        let state = self.state();
        match &state.phase {
            ClaimPhase::Holding(h) if now < h.deadline => Ok(h.token),
            ClaimPhase::Holding(_) => Err(Error::Lost { reason: reason_of_the_end(&state) }),
            ClaimPhase::Ended(Some(why)) => Err(Error::Lost { reason: why.clone() }),
            ClaimPhase::Ended(None) | ClaimPhase::Waiting => Err(Error::Released),
        }
    }

    /// The token that was granted, valid or not.
    pub(crate) fn granted(&self) -> Option<(Token, Duration)> {
        match &self.state().phase {
            ClaimPhase::Holding(h) => Some((h.token, h.ttl)),
            _ => None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        match &self.state().phase {
            ClaimPhase::Holding(h) => h.deadline.since(now),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.state().phase, ClaimPhase::Holding(_))
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state().phase, ClaimPhase::Waiting)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state().phase, ClaimPhase::Ended(_))
    }

    /// Returns when the claim waits no more.
    pub(crate) async fn settled(&self) {
        let settled = || (!matches!(self.state().phase, ClaimPhase::Waiting)).then_some(());
        once_there(&self.changed, settled).await;
    }

    /// Returns when the claim was lost; never when it was given back. Keeps its own timer, so that
    /// it does not depend on the renewer's being alive; and looks at the clock whenever it is polled,
    /// since timers stand still while the machine is suspended.
    pub(crate) async fn lost(&self) -> LossReason {
        let mut loss = std::pin::pin!(self.lost_at_deadline());
        poll_fn(|context| match self.loss() {
            Some(why) => Poll::Ready(why),
            None => loss.as_mut().poll(context),
        })
        .await
    }

    async fn lost_at_deadline(&self) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(why) = self.loss() {
                return why;
            }
            let deadline = match &self.state().phase {
                ClaimPhase::Holding(h) => h.deadline,
                _ => NEVER,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(&*self.clock, deadline) => {}
            }
        }
    }
}
