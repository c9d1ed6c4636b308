//! The rules of the design that a test build can take away one by one, to show that a search then finds a
//! violation. Any other build keeps all of them.

/// One of the ten rules; `docs/stores.md` has their texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "named by the search only"))]
pub(crate) enum StoreRule {
    /// 1: a session ends by a swap at the version that was watched.
    EndAtWatchedVersion,
    /// 1: a missing session is no proof: a tombstone is created first.
    MissingIsNoProof,
    /// 2: another beat restarts the observer's count.
    CountFromArrival,
    /// 3: the owner counts from the sending of the beat that is found.
    CountFromSending,
    /// 4: a session id is created once.
    CreateOnce,
    /// 5: a beat that is found is one of this owner.
    KnownBeat,
    /// 6: a lease counts from a beat that was found, not from the acquire.
    LeaseFromBeat,
    /// 7: a negative answer does not come from a cache.
    ReadBeforeDenial,
    /// 7: while a swap is unanswered, a swap of its own comes before a denial.
    SwapBeforeDenial,
    /// 8: reads never go back on an ordered store.
    ReadsGoForward,
    /// 9: a marked claim is kept for one TTL, and no longer.
    MarkedForOneTtl,
    /// 10: sessions are removed only when dead for one TTL.
    RemoveOnlyDead,
    /// 10: shards are never removed.
    KeepShards,
}

/// Which rules are kept.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    #[cfg(test)]
    pub(crate) without: Option<StoreRule>,
}

impl Rules {
    #[cfg(test)]
    pub(crate) fn applies(self, rule: StoreRule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(test))]
    pub(crate) fn applies(self, _: StoreRule) -> bool {
        true
    }
}
