//! What has passed a proxy. May not decide what passes.

use std::ops::Add;

use super::message::MessageClass;

/// What has passed since the proxy's start or its last reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that clients opened.
    pub connections: u64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Answers that reached clients.
    pub answers: u64,
    /// Messages that reached clients without having been asked for.
    pub pushes: u64,
    /// Keep-alives, flow control and the like, both ways.
    pub chatter: u64,
    /// BatchLimits of requests: what a client sends on one connection before any
    /// answer to it comes back is one.
    pub round_trips: u64,
    /// Bytes that clients sent.
    pub bytes_to_server: u64,
    /// Bytes that servers sent.
    pub bytes_to_client: u64,
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            connections: self.connections + other.connections,
            requests: self.requests + other.requests,
            answers: self.answers + other.answers,
            pushes: self.pushes + other.pushes,
            chatter: self.chatter + other.chatter,
            round_trips: self.round_trips + other.round_trips,
            bytes_to_server: self.bytes_to_server + other.bytes_to_server,
            bytes_to_client: self.bytes_to_client + other.bytes_to_client,
        }
    }
}

/// One connection's counts, and whether pipelined requests are under way.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    in_flight: bool,
}

impl Tally {
    pub(crate) fn opened() -> Self {
        Self { counts: Counts { connections: 1, ..Counts::default() }, in_flight: false }
    }

    /// Counts what a client sent, when it arrives at the proxy.
    pub(crate) fn sent(&mut self, begins: &[MessageClass]) {
        for class in begins {
            if *class == MessageClass::Request {
                self.counts.requests += 1;
                self.counts.round_trips += u64::from(!self.in_flight);
                self.in_flight = true;
            } else {
                self.counts.chatter += 1;
            }
        }
    }

    /// Counts what reaches a client, just before it does: a client that has seen an
    /// answer finds it counted, and a round trip ends no earlier than its client knows.
    pub(crate) fn received(&mut self, begins: &[MessageClass]) {
        for class in begins {
            match class {
                MessageClass::Answer => {
                    self.counts.answers += 1;
                    self.in_flight = false;
                }
                MessageClass::Push => self.counts.pushes += 1,
                MessageClass::Request | MessageClass::Chatter => self.counts.chatter += 1,
            }
        }
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}
