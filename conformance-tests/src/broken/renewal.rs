//! How the toy renews a claim, with the places where that can be wrong.

use lockkit_core::clock::Moment;
use lockkit_core::driver::{Acquisition, ClaimEnd, Grant, LeaseStart, Renewal};
use lockkit_core::{Claim, Lifetime, Token};

use super::InjectedBug;
use super::toy::{Toy, ToyQueue};

impl Toy {
    pub(super) fn prolong(&self, line: &mut ToyQueue, now: Moment, claim: &Claim) -> Renewal {
        if let Some(record) = line.broken.get(&claim.id) {
            line.broken_renewals += 1;
            if self.is(InjectedBug::HidesABreak) && line.broken_renewals <= 3 {
                let token = Token::new(line.last_token).expect("it was given");
                return Renewal::Holds(Grant {
                    token,
                    ttl: claim.hold_ttl,
                    start: LeaseStart::LastAnswered,
                    margin: Default::default(),
                });
            }
            return Renewal::Ended(if self.is(InjectedBug::ForgetsWhoBroke) {
                ClaimEnd::NotFound
            } else {
                ClaimEnd::Broken(record.clone())
            });
        }
        self.revive(line, now, claim);
        let by_name = self.is(InjectedBug::RenewsAnothers) && !line.entries.is_empty();
        let Some(at) = line.position(claim.id).or(by_name.then_some(0)) else {
            return Renewal::Ended(ClaimEnd::NotFound);
        };
        let in_line = line.entries.len();
        let entry = &mut line.entries[at];
        let holds = entry.held_since.is_some();
        if !holds && self.is(InjectedBug::RenewsOnlyHolders) {
            line.entries.remove(at);
            return Renewal::Ended(ClaimEnd::NotFound);
        }
        let ttl = match self.bug {
            Some(InjectedBug::RenewsHolderAsWaiter) => claim.wait_ttl,
            _ if holds => claim.hold_ttl,
            _ => claim.wait_ttl,
        };
        let asked = now.after(self.lasts(ttl));
        let shortens = match self.bug {
            Some(InjectedBug::ShorterRenewalShortens | InjectedBug::RenewsHolderAsWaiter) => true,
            Some(InjectedBug::ShortensWithOthersInLine) => in_line > 1,
            _ => false,
        };
        if !(self.is(InjectedBug::RenewsNoFixedClaim) && claim.lifetime == Lifetime::Fixed) {
            entry.expires = if shortens { asked } else { entry.expires.max(asked) };
        }
        match self.state_of(line, at) {
            Acquisition::Granted(grant) => Renewal::Holds(grant),
            _ => Renewal::Waits { ahead: at as u32 },
        }
    }

    fn revive(&self, line: &mut ToyQueue, now: Moment, claim: &Claim) {
        if self.is(InjectedBug::RevivesWithOthersInLine) && !line.entries.is_empty() {
            let found = line.ended.iter().position(|e| e.claim.id == claim.id);
            if let Some(mut entry) = found.map(|at| line.ended.remove(at)) {
                entry.expires = now.after(claim.hold_ttl);
                line.entries.insert(0, entry);
            }
        }
        if self.is(InjectedBug::RevivesExpired) && line.entries.is_empty() {
            let found = line.ended.iter().position(|e| e.claim.id == claim.id);
            line.entries.extend(found.map(|at| line.ended.remove(at)));
        }
    }
}
