//! What is kept under each fault by the servers as they are set up now, and why; asked for by
//! operators and tools. Core's own work never reads it.

use serde::{Deserialize, Serialize};

use crate::Capabilities;
use crate::capabilities::{Fault, Guarantee};

/// What is kept under one fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Promise {
    /// The fault.
    pub fault: Fault,
    /// What is left under it; `None` where a setting decides that could not be read.
    pub guarantee: Option<Guarantee>,
    /// Why: settings as they were read, or that the driver states it.
    pub why: String,
}

impl Promise {
    /// Whether less is kept than the other says. What is known to be lost is worse than what is not
    /// known.
    pub fn is_worse(&self, than: &Self) -> bool {
        rank(self.guarantee) < rank(than.guarantee)
    }

    /// What is kept, as tables call it.
    pub fn word(&self) -> &'static str {
        self.guarantee.map_or("unknown", Guarantee::word)
    }
}

/// What is kept under each fault, as the servers' settings are now: the row of *these* servers in the
/// table of faults, which has [`Capabilities`] for servers that are set up well.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkit_core::Error> {
/// # let locks = lockkit_core::LockManager::new(lockkit_core::MemoryDriver::new());
/// for promise in locks.promises().await?.all() {
///     println!("{:?}: {:?}, since {}", promise.fault, promise.guarantee, promise.why);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Promises(Vec<Promise>);

impl Promises {
    /// What the driver states, whatever the settings are.
    pub fn of(capabilities: &Capabilities) -> Self {
        let why = "stated by the driver; no setting of the server changes it";
        let stated = |fault| (fault, Some(capabilities.guarantee(fault)), why.to_owned());
        Self::from_iter(Fault::ALL.map(stated))
    }

    /// All of them, in the order of [`Fault::ALL`].
    pub fn all(&self) -> &[Promise] {
        &self.0
    }

    /// What is kept under this fault; `None` where that is not known.
    pub fn guarantee(&self, fault: Fault) -> Option<Guarantee> {
        self.0.iter().find(|promise| promise.fault == fault)?.guarantee
    }

    /// What settings say of this fault, instead of what was known before.
    pub fn set(&mut self, fault: Fault, guarantee: Option<Guarantee>, why: impl Into<String>) {
        if let Some(promise) = self.0.iter_mut().find(|promise| promise.fault == fault) {
            (promise.guarantee, promise.why) = (guarantee, why.into());
        }
    }

    /// At most this is kept under every fault that can happen.
    pub fn limit(&mut self, most: Guarantee, why: &str) {
        for promise in &mut self.0 {
            let lower = |guarantee| guarantee > most && guarantee != Guarantee::Impossible;
            if promise.guarantee.is_none_or(lower) {
                (promise.guarantee, promise.why) = (Some(most), why.to_owned());
            }
        }
    }

    /// Those of them that are less than what the driver states: what the settings cost.
    #[must_use]
    pub fn losses(&self, stated: &Capabilities) -> Self {
        let is_less = |it: &&Promise| rank(it.guarantee) < rank(Some(stated.guarantee(it.fault)));
        Self(self.0.iter().filter(is_less).cloned().collect())
    }

    /// The worse of both, fault by fault, for a backend of several servers. What is known to be kept
    /// no longer is worse than what is not known.
    #[must_use]
    pub fn worse(mut self, other: Self) -> Self {
        for theirs in other.0 {
            if let Some(ours) = self.0.iter_mut().find(|ours| ours.fault == theirs.fault)
                && theirs.is_worse(ours)
            {
                *ours = theirs;
            }
        }
        self
    }
}

impl FromIterator<(Fault, Option<Guarantee>, String)> for Promises {
    fn from_iter<I: IntoIterator<Item = (Fault, Option<Guarantee>, String)>>(all: I) -> Self {
        Self(
            all.into_iter()
                .map(|(fault, guarantee, why)| Promise { fault, guarantee, why })
                .collect(),
        )
    }
}

fn rank(guarantee: Option<Guarantee>) -> u8 {
    match guarantee {
        Some(Guarantee::Nothing) => 0,
        Some(Guarantee::Tokens) => 1,
        None => 2,
        Some(Guarantee::All) => 3,
        Some(Guarantee::Impossible) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(guarantee: Option<Guarantee>) -> Promises {
        let mut promises = Promises::of(&Capabilities::of("x"));
        promises.set(Fault::WritesLost, guarantee, "read");
        promises
    }

    #[test]
    fn the_worse_of_two_servers_counts_and_unknown_is_no_excuse_for_a_known_loss() {
        let lost = |a, b| with(a).worse(with(b)).guarantee(Fault::WritesLost);
        let (all, tokens) = (Some(Guarantee::All), Some(Guarantee::Tokens));
        for (a, b, worse) in [(all, tokens, tokens), (all, None, None), (None, tokens, tokens)] {
            assert_eq!((lost(a, b), lost(b, a)), (worse, worse), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn a_limit_leaves_what_is_worse_and_what_cannot_happen() {
        let mut promises = with(Some(Guarantee::Nothing));
        promises.set(Fault::Failover, Some(Guarantee::Impossible), "one server");
        promises.set(Fault::DataLost, None, "hidden");
        promises.limit(Guarantee::Tokens, "locks are evicted");
        let guarantee = |fault| promises.guarantee(fault);
        assert_eq!(guarantee(Fault::WritesLost), Some(Guarantee::Nothing));
        assert_eq!(guarantee(Fault::Failover), Some(Guarantee::Impossible));
        assert_eq!(guarantee(Fault::DataLost), Some(Guarantee::Tokens));
        assert_eq!(guarantee(Fault::ClientDies), Some(Guarantee::Tokens));
    }
}
