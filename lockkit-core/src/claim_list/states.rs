//! What a claim list shows of its claims.

use std::time::Duration;

use super::{ClaimList, QueuedClaim};
use crate::clock::Moment;
use crate::state::ClaimState;
use crate::{ClientIdentity, Mode};

impl<W: Clone> ClaimList<W> {
    /// The live claims as they are to be shown: with the mode in force, and whether each holds.
    /// One that would begin to hold at the next step is shown as holding.
    pub fn live_entries(&self, now: Moment) -> impl Iterator<Item = (&QueuedClaim<W>, Mode, bool)> {
        let mut ahead = 0;
        self.entries.iter().filter(move |e| e.is_live(now)).map(move |entry| {
            // Who holds goes on, also where the limit was lowered.
            let holds = entry.holds() || self.fits(ahead, entry.mode);
            ahead += u64::from(entry.mode.weight());
            let mode = match entry.mode {
                Mode::Permits { permits, .. } => Mode::Permits { permits, limit: self.capacity },
                other => other,
            };
            (entry, mode, holds)
        })
    }

    /// The live claims as people may see them; `who` says what the driver kept of each: its
    /// identity and its note.
    pub fn states(
        &self,
        now: Moment,
        who: impl Fn(&W) -> (ClientIdentity, Option<String>),
    ) -> Vec<ClaimState> {
        let state = |(entry, mode, holds): (&QueuedClaim<W>, Mode, bool)| {
            let (identity, note) = who(&entry.with);
            let held_for = entry.held_since.map_or(Duration::ZERO, |since| now.since(since));
            let mut state = ClaimState::new(entry.token, mode, identity);
            state.note = note;
            state.ttl = entry.hold_ttl;
            state.expires_in = entry.expires.since(now);
            state.queued_for = now.since(entry.queued_at);
            state.held_for = holds.then_some(held_for);
            state.broken = entry.broken;
            state
        };
        self.live_entries(now).map(state).collect()
    }
}
