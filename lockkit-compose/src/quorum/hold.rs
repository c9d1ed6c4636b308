//! What this process knows of one claim on its quorum: how far it got, and at which members it
//! counts. No I/O.

use std::sync::{Arc, Mutex, MutexGuard};

use lockkit_core::clock::Moment;
use lockkit_core::driver::{ClaimId, Grant, locked};
use lockkit_core::{BreakRecord, Claim, Token};
use tokio::sync::Notify;

pub(super) struct Hold {
    state: Mutex<HoldState>,
    /// Notified when a step has ended, and when the claim was released.
    pub(super) changed: Notify,
}

pub(super) struct HoldState {
    /// As the members see it: under an id that no other round used, so that what an earlier round
    /// sent, and what arrives late, touches no later one.
    pub(super) claim: Arc<Claim>,
    pub(super) phase: QuorumPhase,
    pub(super) members: Vec<AtMember>,
    /// Where it waits between two rounds.
    pub(super) queued: Option<QueuedAt>,
    /// The record of its forced break, and until when renewals report it: nothing of it is at the members
    /// any more.
    pub(super) broken: Option<(BreakRecord, Moment)>,
}

/// What is known of the claim at one member.
#[derive(Clone, Copy, Default)]
pub(super) struct AtMember {
    /// It was raised there, and the member was found to have its data: it counts.
    pub(super) counts: bool,
    /// It is in the queue there, or a request that got no answer may yet put it in, until this moment.
    pub(super) pending_until: Option<Moment>,
    /// It refused the last try.
    pub(super) refused: bool,
}

/// A claim in the queue of one member.
#[derive(Clone)]
pub(super) struct QueuedAt {
    pub(super) member: usize,
    /// As that member sees it: no other member has met its id.
    pub(super) claim: Arc<Claim>,
    /// How many claims were ahead of it when the member last said so.
    pub(super) ahead: u32,
    /// As of [`AtMember`].
    pub(super) pending_until: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuorumPhase {
    /// Between two steps. It is in the queue of one member at most.
    Waiting {
        /// When it is given up, unless it is renewed.
        until: Moment,
    },
    /// In a step: a round, or on its way into a queue.
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
        let phase = QuorumPhase::Trying { until };
        let state = HoldState { claim, phase, members, queued: None, broken: None };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, HoldState> {
        locked(&self.state)
    }

    pub(super) fn claim(&self) -> Arc<Claim> {
        self.state().claim.clone()
    }

    pub(super) fn queued(&self) -> Option<QueuedAt> {
        self.state().queued.clone()
    }

    /// The claim as the members are to see it in the next round: nothing of this id is at any of them.
    pub(super) fn with_new_id(&self) -> Arc<Claim> {
        let mut state = self.state();
        state.claim = Arc::new(Claim::clone(&state.claim).with_id(ClaimId::random()));
        state.members.fill(AtMember::default());
        state.claim.clone()
    }

    /// Begins a round for the claim that is in a queue, and says where that is.
    pub(super) fn take_queued(
        &self,
        pending_until: impl Fn(&Claim) -> Moment,
    ) -> Option<(usize, Arc<Claim>)> {
        let mut state = self.state();
        let QueuedAt { member, claim, .. } = state.queued.take()?;
        state.claim = claim.clone();
        state.members.fill(AtMember::default());
        // It is there, whatever becomes of the round.
        state.members[member].pending_until = Some(pending_until(&claim));
        Some((member, claim))
    }

    pub(super) fn is_trying(&self) -> bool {
        matches!(self.state().phase, QuorumPhase::Trying { .. })
    }

    /// Whether a round is about this very claim, or has made it hold.
    pub(super) fn is_about(&self, claim: &Claim) -> bool {
        let state = self.state();
        let goes_on = matches!(state.phase, QuorumPhase::Trying { .. } | QuorumPhase::Held { .. });
        state.claim.id == claim.id && goes_on
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
