//! What the verbs of the driver share: the requests, the leases, the watches, and what this driver
//! remembers. The verbs are in files of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lockkit_core::Claim;
use lockkit_core::driver::{ClaimId, KnownBases, Recent};
use tokio::sync::OnceCell;

use crate::calls::Calls;
use crate::keys::{Root, in_list};
use crate::leases::Leases;
use crate::place::Place;
use crate::registers::State;
use crate::tails::Tails;
use crate::watches::Watches;

/// Of how many registers it is remembered how they were.
const REMEMBERED: usize = 4_096;

/// The locks of one driver, without its outside.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) calls: Arc<Calls>,
    pub(crate) root: Root,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    pub(crate) tails: Tails,
    /// Registers, by the keys of their values.
    pub(crate) registers: Recent<Vec<u8>, State>,
    pub(crate) bases: KnownBases,
    /// Whether the format of what is stored was checked.
    pub(crate) format: OnceCell<()>,
    /// The claims that this driver put in line.
    pub(crate) places: Mutex<HashMap<ClaimId, Place>>,
    /// Held while claims are moved away from leases that were retired.
    pub(crate) leaving: Arc<tokio::sync::Mutex<()>>,
}

impl Locks {
    pub(crate) fn new(calls: Calls, root: Root) -> Self {
        let calls = Arc::new(calls);
        Self {
            leases: Leases::new(calls.clone(), root.bytes()),
            root,
            watches: Watches::new(calls.clone()),
            tails: Tails::default(),
            registers: Recent::new(REMEMBERED),
            bases: KnownBases::default(),
            format: OnceCell::new(),
            calls,
            places: Mutex::default(),
            leaving: Arc::default(),
        }
    }

    /// The key of a claim, and its create revision if it was seen.
    pub(crate) fn key_of(&self, claim: &Claim) -> (Vec<u8>, Option<i64>) {
        if let Some(place) = self.places().get(&claim.id) {
            return (place.entry.key.clone(), Some(place.entry.created));
        }
        let (tail, created) = self.tails.of(claim);
        (in_list(&self.root.list(&claim.key), claim, &tail), created)
    }
}
