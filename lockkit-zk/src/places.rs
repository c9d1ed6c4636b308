//! What this process remembers of its claims: in which session they were put in line, and where
//! they stand. A memory, not the truth: that is what ZooKeeper says.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockkit_core::{ClaimId, Token};

use crate::line::Ahead;
use crate::paths::Tag;
use crate::session::Session;

/// One claim's place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The session that its node lives in, or would if it was created.
    pub(crate) session: Arc<Session>,
    pub(crate) tag: Tag,
    /// `None` when it is not known whether its node was created.
    pub(crate) node: Option<Node>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The folder of its list.
    pub(crate) folder: String,
    pub(crate) name: String,
    pub(crate) token: Token,
    /// Whether it is known to hold.
    pub(crate) holds: bool,
    /// What the last look saw ahead of it, while it waits.
    pub(crate) ahead: Option<Ahead>,
}

impl Node {
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.folder, self.name)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<ClaimId, Place>>);

impl Places {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, id: ClaimId) -> Option<Place> {
        self.all().get(&id).cloned()
    }

    /// Remembers that a claim's node is about to be created. Called before the request goes out,
    /// so that whatever becomes of it, somebody knows.
    pub(crate) fn expect(&self, id: ClaimId, tag: &Tag, session: &Arc<Session>) {
        let place = Place { session: session.clone(), tag: tag.clone(), node: None };
        self.all().insert(id, place);
    }

    pub(crate) fn settle(&self, id: ClaimId, node: Node) {
        if let Some(place) = self.all().get_mut(&id) {
            place.node = Some(node);
        }
    }

    pub(crate) fn holds(&self, id: ClaimId) {
        if let Some(node) = self.all().get_mut(&id).and_then(|place| place.node.as_mut()) {
            node.holds = true;
            node.ahead = None;
        }
    }

    pub(crate) fn forget(&self, id: ClaimId) {
        self.all().remove(&id);
    }

    /// The tags of all claims that somebody here owns.
    pub(crate) fn tags(&self) -> HashSet<Tag> {
        self.all().values().map(|place| place.tag.clone()).collect()
    }
}
