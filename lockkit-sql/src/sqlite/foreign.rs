//! Rows of another boot that were put back by hand: their times are of another clock, and could lie
//! days ahead. Such a claim or value lives for one TTL from the moment when a writer first meets it, as
//! all do where a whole file is taken over.

use lockkit_core::driver::RegisterKey;
use lockkit_core::{Key, claim_list};
use rusqlite::params;

use super::transaction::{Transaction, moment, stored};
use crate::rows::columns;

/// How far ahead of a transaction's clock another one of the same boot may have written (in
/// nanoseconds): one that reads has its clock before it sees what a writer committed meanwhile.
pub(super) const STALE: i64 = 10_000_000_000;

impl Transaction<'_> {
    /// The claims of a queue with the times of this boot. One that writes corrects their rows, so that
    /// their time begins once.
    pub(super) fn adopted<W>(
        &self,
        key: &Key,
        mut entries: Vec<claim_list::QueuedClaim<W>>,
    ) -> rusqlite::Result<Vec<claim_list::QueuedClaim<W>>> {
        let (namespace, space, name) = columns(key);
        for entry in &mut entries {
            if self.adopt(entry) && self.writes {
                let (sequence, expires) = (entry.sequence as i64, stored(entry.expires));
                let text = "UPDATE lockkit_claims SET expires = ?5, asked = ?6,
                        queued = min(queued, ?6), held = min(held, ?6)
                    WHERE namespace = ?1 AND space = ?2 AND name = ?3 AND sequence = ?4";
                self.run(text, params![namespace, space, name, sequence, expires, self.now()])?;
            }
        }
        Ok(entries)
    }

    /// Reads the times of a claim that was asked for later than now as those of a claim that was asked
    /// for now: no transaction before this one had such a clock. Returns whether it was one.
    ///
    /// An end that lies ahead by more than the TTL does not suffice: a claim that was renewed for less than
    /// before keeps its end.
    fn adopt<W>(&self, entry: &mut claim_list::QueuedClaim<W>) -> bool {
        let now = moment(self.now());
        let end = now.after(if entry.holds() { entry.hold_ttl } else { entry.wait_ttl });
        let foreign = stored(entry.asked_at) > self.now() + STALE && entry.expires > end;
        if foreign {
            entry.expires = end;
            entry.asked_at = now;
            entry.queued_at = entry.queued_at.min(now);
            entry.held_since = entry.held_since.map(|since| since.min(now));
        }
        foreign
    }

    /// Lets a value that would end later than one TTL from now end then. For one that writes.
    pub(super) fn adopt_value(&self, at: &RegisterKey) -> rusqlite::Result<()> {
        let text = "UPDATE lockkit_registers SET expires = ?3 + ttl, purge_at = ?3 + ttl
            WHERE namespace = ?1 AND name = ?2 AND expires > ?3 + ttl";
        self.run(text, params![at.namespace.as_str(), at.name.as_str(), self.now()])
    }
}
