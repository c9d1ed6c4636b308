//! What can be asked of a record: whether it waits, holds, is lost, and until when.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::loss::reason_of_the_end;
use super::{NEVER, Phase, Record};
use crate::clock::sleep_until;
use crate::concurrency::once_there;
use crate::{Error, LossReason, Token};

impl Record {
    pub(crate) fn token(&self) -> Result<Token, Error> {
        let now = self.clock.now();
        let term = self.term();
        match &term.phase {
            Phase::Holding(h) if now < h.deadline => Ok(h.token),
            Phase::Holding(_) => Err(Error::Lost { reason: reason_of_the_end(&term) }),
            Phase::Ended(Some(why)) => Err(Error::Lost { reason: why.clone() }),
            Phase::Ended(None) | Phase::Waiting => Err(Error::Released),
        }
    }

    /// The token that was granted, valid or not.
    pub(crate) fn granted(&self) -> Option<(Token, Duration)> {
        match &self.term().phase {
            Phase::Holding(h) => Some((h.token, h.ttl)),
            _ => None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        match &self.term().phase {
            Phase::Holding(h) => h.deadline.since(now),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.term().phase, Phase::Holding(_))
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.term().phase, Phase::Waiting)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.term().phase, Phase::Ended(_))
    }

    /// Returns when the claim waits no more.
    pub(crate) async fn settled(&self) {
        let settled = || (!matches!(self.term().phase, Phase::Waiting)).then_some(());
        once_there(&self.changed, settled).await;
    }

    /// Returns when the claim was lost; never when it was given back. Keeps its own timer, so that
    /// it does not depend on the renewer's being alive; and looks at the clock whenever it is polled,
    /// since timers stand still while the machine is suspended.
    pub(crate) async fn lost(&self) -> LossReason {
        let mut told = std::pin::pin!(self.told_of_a_loss());
        poll_fn(|context| match self.loss() {
            Some(why) => Poll::Ready(why),
            None => told.as_mut().poll(context),
        })
        .await
    }

    async fn told_of_a_loss(&self) -> LossReason {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(why) = self.loss() {
                return why;
            }
            let deadline = match &self.term().phase {
                Phase::Holding(h) => h.deadline,
                _ => NEVER,
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(&*self.clock, deadline) => {}
            }
        }
    }
}
