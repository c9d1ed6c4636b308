//! What this process knows of one claim on its quorum: how far it got, and at which members it
//! counts. No I/O.

use std::sync::{Arc, Mutex, MutexGuard};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Grant, locked};
use lockkit_core::{BreakRecord, Claim, Token};

pub(super) struct Hold {
    state: Mutex<HoldState>,
}

pub(super) struct HoldState {
    /// As the members see it: under an id that no other round used, so that what an earlier round
    /// sent, and what arrives late, touches no later one.
    pub(super) claim: Arc<Claim>,
    pub(super) phase: QuorumPhase,
    pub(super) members: Vec<AtMember>,
    /// The record of its forced break, and until when renewals report it: nothing of it is at the members
    /// any more.
    pub(super) broken: Option<(BreakRecord, Moment)>,
}

/// What is known of the claim at one member.
#[derive(Clone, Copy, Default)]
pub(super) struct AtMember {
    /// It was raised there, and the member was found to have its data: it counts.
    pub(super) counts: bool,
    /// A request that got no answer may yet put it into the queue there, until this moment.
    pub(super) pending_until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuorumPhase {
    /// Between two rounds. Nothing of it is at any member.
    Waiting {
        /// When it is given up, unless it is renewed.
        until: Moment,
    },
    /// In a round.
    Trying {
        /// As above.
        until: Moment,
    },
    Held {
        grant: Grant,
        /// Until when a majority certainly keeps it.
        until: Moment,
    },
    /// Given back, or lost.
    Over,
}

impl Hold {
    pub(super) fn new(claim: Arc<Claim>, members: usize, until: Moment) -> Self {
        let members = vec![AtMember::default(); members];
        let state =
            HoldState { claim, phase: QuorumPhase::Trying { until }, members, broken: None };
        Self { state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, HoldState> {
        locked(&self.state)
    }

    pub(super) fn claim(&self) -> Arc<Claim> {
        self.state().claim.clone()
    }

    /// The token with which it is held under this very claim.
    pub(super) fn token_of(&self, claim: &Claim) -> Option<Token> {
        let state = self.state();
        match state.phase {
            QuorumPhase::Held { grant, .. } if state.claim.id == claim.id => Some(grant.token),
            _ => None,
        }
    }

    /// All members, each with the moment until which a request that was not answered may yet put
    /// the claim into the queue there.
    pub(super) fn pending(&self) -> Vec<(usize, Option<Moment>)> {
        self.state().members.iter().map(|member| member.pending_until).enumerate().collect()
    }

    /// Remembers whether the claim counts at this member, unless it is over or another by now.
    pub(super) fn set_member(&self, claim: &Claim, member: usize, counts: bool) {
        let mut state = self.state();
        if state.claim.id == claim.id {
            state.members[member].counts = counts;
        }
    }
}
