//! The reference: a lock as a list of claims and the rule of [`queue`], written for being read.
//! It has no time; leases of the claims that it is compared with must outlast the comparison.

use lockkit_core::driver::Force;
use lockkit_core::{ClaimId, Mode, queue};

/// One lock, as it must behave.
#[derive(Clone, Debug, Default)]
pub struct Model {
    line: Vec<Member>,
    broken: Vec<ClaimId>,
}

/// A claim in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Whose it is.
    pub id: ClaimId,
    /// How it shares.
    pub mode: Mode,
    /// Whether it was broken politely.
    pub broken: bool,
}

/// What an acquire must be answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds.
    Holds,
    /// It waits behind so many.
    Waits(u32),
    /// It was refused.
    Busy,
    /// The semaphore has this other limit.
    OtherLimit(u32),
    /// It is not there.
    Gone,
    /// It was broken.
    Broken,
}

impl Model {
    /// The list, and how many of its first members hold.
    pub fn line(&self) -> (&[Member], usize) {
        let holders = queue::holders(self.line.iter().map(|m| m.mode));
        (&self.line, holders)
    }

    fn at(&self, id: ClaimId) -> Option<usize> {
        self.line.iter().position(|m| m.id == id)
    }

    fn standing(&self, at: usize) -> Answer {
        match at < self.line().1 {
            true => Answer::Holds,
            false => Answer::Waits(at as u32),
        }
    }

    /// A claim comes, or asks again.
    pub fn acquire(&mut self, id: ClaimId, mode: Mode, waits: bool) -> Answer {
        let known = self.at(id);
        let other_limit = self.line.first().and_then(|m| m.mode.limit());
        let other_limit = other_limit.filter(|limit| Some(*limit) != mode.limit());
        if let (None, Some(limit)) = (known, other_limit) {
            return Answer::OtherLimit(limit);
        }
        let at = known.unwrap_or_else(|| {
            self.line.push(Member { id, mode, broken: false });
            self.line.len() - 1
        });
        match self.standing(at) {
            Answer::Waits(_) if !waits => {
                self.line.remove(at);
                Answer::Busy
            }
            standing => standing,
        }
    }

    /// A claim is renewed.
    pub fn renew(&self, id: ClaimId) -> Answer {
        match self.at(id) {
            _ if self.broken.contains(&id) => Answer::Broken,
            Some(at) => self.standing(at),
            None => Answer::Gone,
        }
    }

    /// A claim leaves; says whether it was there, and if not, whether anybody is.
    pub fn release(&mut self, id: ClaimId) -> (bool, bool) {
        let found = self.at(id);
        found.map(|at| self.line.remove(at));
        (found.is_some(), !self.line.is_empty())
    }

    /// A holding exclusive claim becomes a shared one.
    pub fn downgrade(&mut self, id: ClaimId) -> Answer {
        if let Some(at) = self.at(id).filter(|_| !self.broken.contains(&id)) {
            self.line[at].mode = Mode::Shared;
        }
        self.renew(id)
    }

    /// The member at this place is broken.
    pub fn break_at(&mut self, at: usize, force: Force) {
        let Some(member) = self.line.get_mut(at) else {
            return;
        };
        self.broken.push(member.id);
        match force {
            Force::Polite => member.broken = true,
            Force::Immediate => drop(self.line.remove(at)),
        }
    }
}
