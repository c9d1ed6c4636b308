//! The faults that a proxy can do, and when they strike. May not touch sockets:
//! what a fault means for a message is a delivery, which the connection carries out.

use std::time::Duration;

use tokio::sync::watch;

use super::message::MessageClass;

/// One of the two ends of a connection through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What the network does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyFault {
    /// The connection is reset at both ends. The message that it strikes at, and
    /// whatever is under way, is lost: struck at an answer, the server has acted.
    Cut,
    /// Nothing passes any more, on any connection, nor does anything close; all is
    /// held back until [`Proxy::heal`](super::Proxy::heal), as TCP holds it back
    /// through a partition.
    BlackHole,
    /// Whatever the server says from here on never arrives, on this connection,
    /// while requests still reach it and are carried out. Struck at a request: that
    /// request's answer is the first that is lost. It has struck when an answer was
    /// thrown away, that is, after the server acted.
    Mute,
    /// This message, and what follows it in its direction, takes so much longer.
    Delay(Duration),
    /// Only one end hears that the connection is closed; the other one's stays
    /// open and silent. The message is lost.
    HalfOpen {
        /// Who hears of it.
        receiver: End,
    },
}

/// When a fault strikes. Messages are counted from 1, from the moment of the order
/// on, over all connections of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once, on all connections that are open. A [`ProxyFault::Delay`] strikes at the
    /// next request.
    Now,
    /// When this request arrives at the proxy.
    Request(u64),
    /// When this answer arrives at the proxy.
    Answer(u64),
    /// When this message, which answers no request, arrives at the proxy.
    Push(u64),
}

impl When {
    fn counts(self, class: MessageClass) -> bool {
        matches!(
            (self, class),
            (Self::Request(_), MessageClass::Request)
                | (Self::Answer(_), MessageClass::Answer)
                | (Self::Push(_), MessageClass::Push)
        )
    }

    fn nth(self) -> u64 {
        match self {
            Self::Now => 1,
            Self::Request(nth) | Self::Answer(nth) | Self::Push(nth) => nth.max(1),
        }
    }
}

/// Tells whether a fault that was ordered has struck.
#[derive(Debug, Clone)]
pub struct FaultFired(watch::Receiver<bool>);

impl FaultFired {
    /// Whether it has.
    pub fn has_struck(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it has struck, or never will since it was taken back.
    ///
    /// # Cancel safety
    ///
    /// It only waits: it may be dropped at any time.
    pub async fn struck(&mut self) {
        let _ = self.0.wait_for(|struck| *struck).await;
    }
}

/// A fault that waits for its message.
#[derive(Debug)]
pub(crate) struct PendingFault {
    pub(crate) fault: ProxyFault,
    when: When,
    remaining: u64,
    pub(crate) fired: watch::Sender<bool>,
}

impl PendingFault {
    pub(crate) fn new(fault: ProxyFault, when: When) -> (Self, FaultFired) {
        let (fired, seen) = watch::channel(false);
        (Self { fault, when, remaining: when.nth(), fired }, FaultFired(seen))
    }

    /// Counts a message; true if the fault strikes at it.
    pub(crate) fn meets(&mut self, begins: &[MessageClass]) -> bool {
        begins.iter().any(|class| {
            let counted = self.when.counts(*class) && self.remaining > 0;
            self.remaining -= u64::from(counted);
            counted && self.remaining == 0
        })
    }
}
