//! The reference: a lock as a list of claims and the rule of [`queue`], written for being read.
//! It has no time; leases of the claims that it is compared with must outlast the comparison.

use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{BreakMode, SetLimit};
use lockkit_core::{Mode, queue};

/// One lock, as it must behave.
#[derive(Clone, Debug, Default)]
pub struct Model {
    queue: Vec<ModelClaim>,
    /// The limit that the semaphore was given.
    given: Option<u32>,
    broken: Vec<ClaimId>,
}

/// A claim in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelClaim {
    /// Whose it is.
    pub id: ClaimId,
    /// How it shares.
    pub mode: Mode,
    /// Whether it began to hold: then it holds until it leaves.
    pub held: bool,
    /// Whether it was broken gracefully.
    pub broken: bool,
}

/// What an acquire must be answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedResult {
    /// It holds.
    Holds,
    /// It waits behind so many.
    Waits(u32),
    /// It was refused.
    Busy,
    /// The semaphore has this other limit.
    OtherLimit(u32),
    /// It is not there.
    NotFound,
    /// It was broken.
    Broken,
}

impl Model {
    /// The list, and how many of its first members hold.
    pub fn queue_and_holders(&self) -> (&[ModelClaim], usize) {
        (&self.queue, self.queue.iter().take_while(|m| m.held).count())
    }

    /// The limit that the semaphore was given.
    pub fn given(&self) -> Option<u32> {
        self.given
    }

    /// Those who now hold begin to. Who held before holds on, also under a lower limit.
    fn promote(&mut self) {
        let holders = queue::holders(self.queue.iter().map(|m| m.mode));
        self.queue.iter_mut().take(holders).for_each(|m| m.held = true);
    }

    fn at(&self, id: ClaimId) -> Option<usize> {
        self.queue.iter().position(|m| m.id == id)
    }

    fn result_at(&self, at: usize) -> ExpectedResult {
        match at < self.queue_and_holders().1 {
            true => ExpectedResult::Holds,
            false => ExpectedResult::Waits(at as u32),
        }
    }

    /// A claim comes, or asks again.
    pub fn acquire(&mut self, id: ClaimId, mode: Mode, waits: bool) -> ExpectedResult {
        let known = self.at(id);
        let in_use = self.queue.first().and_then(|m| m.mode.limit());
        let other_limit = self.given.or(in_use);
        let other_limit = other_limit.filter(|limit| Some(*limit) != mode.limit());
        if let (None, Some(limit)) = (known, other_limit) {
            return ExpectedResult::OtherLimit(limit);
        }
        let at = known.unwrap_or_else(|| {
            self.queue.push(ModelClaim { id, mode, held: false, broken: false });
            self.promote();
            self.queue.len() - 1
        });
        match self.result_at(at) {
            ExpectedResult::Waits(_) if !waits => {
                self.queue.remove(at);
                self.promote();
                ExpectedResult::Busy
            }
            _ if self.queue[at].broken => ExpectedResult::Broken,
            result_at => result_at,
        }
    }

    /// A claim is renewed.
    pub fn renew(&self, id: ClaimId) -> ExpectedResult {
        match self.at(id) {
            _ if self.broken.contains(&id) => ExpectedResult::Broken,
            Some(at) => self.result_at(at),
            None => ExpectedResult::NotFound,
        }
    }

    /// A claim leaves; says whether it was there, and if not, whether anybody is.
    pub fn release(&mut self, id: ClaimId) -> (bool, bool) {
        let found = self.at(id);
        found.map(|at| self.queue.remove(at));
        self.promote();
        (found.is_some(), !self.queue.is_empty())
    }

    /// A holding exclusive claim becomes a shared one.
    pub fn downgrade(&mut self, id: ClaimId) -> ExpectedResult {
        if let Some(at) = self.at(id).filter(|_| !self.broken.contains(&id)) {
            self.queue[at].mode = Mode::Shared;
            self.promote();
        }
        self.renew(id)
    }

    /// The member at this place is broken.
    pub fn break_at(&mut self, at: usize, force: BreakMode) {
        let Some(member) = self.queue.get_mut(at) else {
            return;
        };
        self.broken.push(member.id);
        match force {
            BreakMode::Graceful => member.broken = true,
            BreakMode::Forced => drop(self.queue.remove(at)),
        }
        self.promote();
    }

    /// The semaphore is given a limit; says which one it has.
    pub fn resize(&mut self, limit: SetLimit) -> u32 {
        let in_use = self.queue.first().and_then(|m| m.mode.limit());
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) => self.given.or(in_use).unwrap_or(limit),
        };
        self.given = Some(limit);
        for member in &mut self.queue {
            if let Mode::Permits { permits, .. } = member.mode {
                member.mode = Mode::Permits { permits, limit };
            }
        }
        self.promote();
        limit
    }
}
