//! The guards on which the argument in `docs/quorum.md` rests, by name. All of them are always up;
//! the search for counterexamples alone takes them down, one by one, to show that it would notice.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guards {
    /// Members are tried, never queued at.
    pub(super) never_queue: bool,
    /// A majority is raised to the greatest token it gave.
    pub(super) raise: bool,
    /// A raise counts only when the claim was still live there.
    pub(super) raise_only_live: bool,
    /// A repaired member counts only after its raise.
    pub(super) repair_raises: bool,
    /// A member that came back empty does not count for the longest ttl.
    pub(super) quarantine: bool,
    /// A member that lost its data comes back in a greater epoch of tokens.
    pub(super) epochs: bool,
    /// Each round has a claim id of its own.
    pub(super) fresh_ids: bool,
    /// A grant whose time is over by its arrival is given back.
    pub(super) time_left: bool,
    /// One epoch of a member stands for a whole round, whatever another round learns meanwhile.
    pub(super) epoch_of_the_round: bool,
    /// What a member was asked for and did not answer to is taken back there, too.
    pub(super) ghosts: bool,
}

impl Guards {
    pub(super) const ALL: Self = Self {
        never_queue: true,
        raise: true,
        raise_only_live: true,
        repair_raises: true,
        quarantine: true,
        epochs: true,
        fresh_ids: true,
        time_left: true,
        epoch_of_the_round: true,
        ghosts: true,
    };
}
