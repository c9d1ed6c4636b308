//! Writes down which claims of a storm's clients have a place in the queue, as the backend says: without
//! it, the judge could not tell which claim was overtaken. It disturbs nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use lockkit_core::driver::{Acquisition, Renewal};
use lockkit_core::{Claim, Error, LockManager};

use crate::history::{EventKind, Recorder};
use lockkit_conformance::wrap::{ObservedAnswer, Tamper, Tampered};

/// Hears what the driver answers to the clients of a process.
#[derive(Debug)]
pub(super) struct Witness {
    /// What each client writes into, and its operation that has a place in the queue.
    clients: BTreeMap<u32, (Recorder, Mutex<u64>)>,
}

/// The note by which a claim is known to be of this operation.
pub(super) fn note(client: u32, op: u64) -> String {
    format!("{client} {op}")
}

impl Witness {
    /// Of these clients, whose histories are in this folder.
    pub(super) fn of(
        clients: impl IntoIterator<Item = u32>,
        folder: &Path,
    ) -> io::Result<Arc<Self>> {
        let open = |client| {
            let path = folder.join(format!("client-{client}.jsonl"));
            Ok((client, (Recorder::open(path, client)?, Mutex::new(0))))
        };
        let clients = clients.into_iter().map(open).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { clients }))
    }

    /// The same manager, observed by this witness.
    pub(super) fn hears(self: &Arc<Self>, locks: &LockManager) -> Result<LockManager, Error> {
        let driver = Tampered::new(locks.driver().clone(), self.clone());
        LockManager::with(Arc::new(driver), locks.settings().clone())
    }

    fn placed(&self, claim: &Claim, waits: bool, sent: u64) {
        let note = claim.note.as_deref().and_then(|note| note.split_once(' '));
        let Some((client, op)) = note else { return };
        let (Ok(client), Ok(op)) = (client.parse::<u32>(), op.parse::<u64>()) else { return };
        let Some((recorder, in_line)) = self.clients.get(&client) else { return };
        let mut in_line = in_line.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is granted at once has no place to lose, unless it lost one before.
        if !waits && *in_line != op {
            return;
        }
        *in_line = op;
        let (id, _) = claim.id.as_bytes().split_at(8);
        let claim = id.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        // A history that cannot be written fails the storm when its client writes next.
        let _ = recorder.record(EventKind::Placed { op, claim, sent });
    }
}

impl Tamper for Witness {
    fn observed(&self, answer: ObservedAnswer<'_>, sent: u64) {
        match answer {
            ObservedAnswer::Acquired(claim, Acquisition::Queued { .. }) => {
                self.placed(claim, true, sent)
            }
            ObservedAnswer::Acquired(claim, Acquisition::Granted(_)) => {
                self.placed(claim, false, sent)
            }
            ObservedAnswer::Renewed(claim, Renewal::Waits { .. }) => self.placed(claim, true, sent),
            _ => {}
        }
    }
}
