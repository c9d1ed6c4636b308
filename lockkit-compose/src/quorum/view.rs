//! What a quorum shows: what a majority of its members agree on. And breaking, which begins with
//! looking.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{BACKEND, QuorumInner};
use crate::named::why;
use lockkit_core::driver::{BreakMode, LockDriver};
use lockkit_core::state::{ClaimState, Finding, Health, LockState, Severity};
use lockkit_core::{BreakRecord, Claim, Error, Key, Mode, Namespace, Token};

impl QuorumInner {
    pub(super) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        Ok(self.merge(key.clone(), self.inspect_members(key).await?))
    }

    async fn inspect_members(&self, key: &Key) -> Result<Vec<(usize, LockState)>, Error> {
        let inspecting = (0..self.members.len()).map(|member| self.inspect_at(member, key));
        self.enough(join_all(inspecting).await)
    }

    async fn inspect_at(&self, member: usize, key: &Key) -> Result<LockState, Error> {
        let key = key.clone();
        let inspect = |driver: Arc<dyn LockDriver>| async move { driver.inspect(&key).await };
        self.ask(member, self.options.member_limit, inspect).await
    }

    /// Whether a majority of the members shows no holder, without this one.
    pub(super) async fn is_free_past(&self, member: usize, key: &Key) -> bool {
        let others = self.others(member).map(|other| self.inspect_at(other, key));
        let states = join_all(others).await;
        let is_free = |state: &&LockState| !state.queue.iter().any(ClaimState::holds);
        states.iter().flatten().filter(is_free).count() >= self.majority()
    }

    /// Whether a claim that conflicts with this one is at a majority of the members, or may be for
    /// all that is known. Where one is held, a majority shows it with one token.
    pub(super) async fn may_be_held(&self, claim: &Claim) -> bool {
        let Ok(states) = self.inspect_members(&claim.key).await else {
            return true;
        };
        let silent = self.members.len() - states.len();
        let conflicts = |s: &ClaimState| {
            s.holds() && (claim.mode == Mode::Exclusive || s.mode == Mode::Exclusive)
        };
        let mut counts: HashMap<_, usize> = HashMap::new();
        for (_, state) in states {
            for claim in state.queue.into_iter().filter(conflicts) {
                *counts.entry(claim.token).or_default() += 1;
            }
        }
        counts.values().max().unwrap_or(&0) + silent >= self.majority()
    }

    /// The answers with their members, if they are of a majority.
    pub(super) fn enough<T>(
        &self,
        answers: Vec<Result<T, Error>>,
    ) -> Result<Vec<(usize, T)>, Error> {
        let some = answers.into_iter().enumerate().filter_map(|(m, a)| Some((m, a.ok()?)));
        let some: Vec<_> = some.collect();
        match some.len() >= self.majority() {
            true => Ok(some),
            false => Err(Error::retryable(BACKEND, "no majority of the members answered")),
        }
    }

    /// One list as a majority has it. What only a minority has is on its way in or out.
    pub(super) fn merge(&self, key: Key, states: Vec<(usize, LockState)>) -> LockState {
        let breaks = states.iter().filter_map(|(_, state)| state.last_break.as_ref());
        let last_break = breaks.max_by_key(|record| record.at_unix_ms).cloned();
        let groups = self.groups(states).into_iter();
        let mut queue: Vec<_> = groups.map(|group| self.sum(group)).collect();
        queue.sort_by_key(|claim| claim.token);
        LockState::new(key, queue, last_break)
    }

    /// What is said of each claim that a majority has.
    fn groups(&self, states: Vec<(usize, LockState)>) -> Vec<Vec<MemberClaim>> {
        let mut groups: Vec<Vec<MemberClaim>> = Vec::new();
        for (member, state) in states {
            for state in state.queue.into_iter().filter(ClaimState::holds) {
                let claim = MemberClaim { member, state };
                match groups.iter_mut().find(|group| group.iter().all(|one| claim.goes_with(one))) {
                    Some(group) => group.push(claim),
                    None => groups.push(vec![claim]),
                }
            }
        }
        groups.retain(|group| group.len() >= self.majority());
        groups
    }

    /// One claim, from what a majority says of it.
    fn sum(&self, group: Vec<MemberClaim>) -> ClaimState {
        let token = self.token_of(&group);
        // With less than that it is not raised yet, or one before it that is not away yet.
        let sure = group.into_iter().map(|claim| claim.state).filter(|s| s.token >= token);
        let mut group: Vec<_> = sure.collect();
        group.sort_by_key(|state| std::cmp::Reverse(state.expires_in));
        // It holds for as long as a majority keeps it.
        let expires_in = group[self.majority() - 1].expires_in;
        let broken = group.iter().any(|state| state.broken);
        let held_for = group.iter().filter_map(|state| state.held_for).max();
        let queued_for = group.iter().map(|state| state.queued_for).max();
        // A downgrade that a member has carried out reaches the others: a claim never gets exclusive again.
        let is_shared = group.iter().any(|state| state.mode == Mode::Shared);
        let mut one = group.swap_remove(0);
        one.token = token;
        if is_shared {
            one.mode = Mode::Shared;
        }
        one.queued_for = queued_for.unwrap_or(Duration::ZERO);
        (one.expires_in, one.broken, one.held_for) = (expires_in, broken, held_for);
        one
    }

    /// The token of a claim that a majority has: the greatest that a majority has not less than.
    fn token_of(&self, group: &[MemberClaim]) -> Token {
        let mut tokens: Vec<_> = group.iter().map(|claim| claim.state.token).collect();
        tokens.sort_unstable();
        tokens[tokens.len() - self.majority()]
    }

    pub(super) async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        mode: BreakMode,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let states = self.inspect_members(key).await?;
        // A member that was repaired may have given it a greater one than the others; but a smaller
        // one may be that of a claim before it.
        let has_token = |group: &Vec<MemberClaim>| {
            token >= self.token_of(group) && group.iter().any(|claim| claim.state.token == token)
        };
        let Some(aim) = self.groups(states).into_iter().find(has_token) else {
            return Ok(false);
        };
        let limit = self.options.member_limit;
        let breaking = aim.into_iter().map(|claim| {
            let (key, record) = (key.clone(), record.clone());
            self.ask(claim.member, limit, move |driver| async move {
                driver.break_claim(&key, claim.state.token, mode, &record).await
            })
        });
        let answers = join_all(breaking).await;
        if answers.iter().flatten().count() >= self.majority() {
            return Ok(answers.iter().flatten().any(|broken| *broken));
        }
        Err(Error::retryable(BACKEND, "no majority of the members answered"))
    }

    pub(super) async fn namespace_counter(&self, namespace: &Namespace) -> Result<u64, Error> {
        let limit = self.options.member_limit;
        let asking = (0..self.members.len()).map(|member| self.base_of(member, namespace, limit));
        let bases = self.enough(join_all(asking).await)?;
        let greatest = bases.iter().map(|(_, base)| *base).max().unwrap_or(0);
        // A member that lost its data has lost this as well, and is asked to break it; it does no harm if it does not.
        let behind = bases.iter().filter(|(_, base)| *base < greatest);
        join_all(behind.map(|(m, _)| self.raise_base_of(*m, namespace, greatest))).await;
        Ok(greatest)
    }

    pub(super) async fn raise_namespace_counter(
        &self,
        namespace: &Namespace,
        base: u64,
    ) -> Result<(), Error> {
        // All of them, not a majority: the next to read it may meet one that lost its data and one
        // that was not told.
        let all = 0..self.members.len();
        let raised = join_all(all.map(|m| self.raise_base_of(m, namespace, base))).await;
        match raised.into_iter().collect::<Result<(), Error>>() {
            Ok(()) => Ok(()),
            Err(error) => {
                let message = format!("all members must take a new token base; {}", why(&error));
                Err(Error::retryable(BACKEND, message))
            }
        }
    }

    pub(super) async fn health(&self) -> Result<Health, Error> {
        let limit = self.options.member_limit;
        let asking = (0..self.members.len()).map(|member| async move {
            let health = |driver: Arc<dyn LockDriver>| async move { driver.health().await };
            Ok((self.ask(member, limit, health).await?, self.may_vote(member).await?))
        });
        let answers = join_all(asking).await;
        let mut findings = Vec::new();
        for (member, answer) in answers.iter().enumerate() {
            let name = &self.members[member].name;
            let own = |finding: &Finding| finding.clone().at(name);
            match answer {
                Ok((health, votes)) => {
                    findings.extend(health.findings.iter().map(own));
                    if !votes {
                        findings.push(quarantined(name));
                    }
                }
                Err(error) => findings.push(silent(error)),
            }
        }
        let answered = self.enough(answers)?.len();
        let server = format!("quorum: {answered} of {} members answer", self.members.len());
        if self.members.len() & 1 == 0 {
            findings.push(Finding::new(
                Severity::Note,
                "The number of members is even.",
                "One member fewer survives as many failures.",
            ));
        }
        Ok(findings.into_iter().fold(Health::well(server), Health::with))
    }
}

/// A claim as one member shows it.
struct MemberClaim {
    member: usize,
    state: ClaimState,
}

impl MemberClaim {
    /// Whether two members speak of one claim, as far as can be seen without its id.
    fn goes_with(&self, other: &Self) -> bool {
        let (a, b) = (&self.state, &other.state);
        let alike = a.identity == b.identity && a.note == b.note && a.ttl == b.ttl;
        let one = self.member != other.member && alike;
        // Only one exclusive claim holds at a time; of shared ones, the token tells which. A member that has
        // not carried out a downgrade yet shows the claim as exclusive, with that token.
        let both_exclusive = a.mode == Mode::Exclusive && b.mode == Mode::Exclusive;
        one && (both_exclusive || a.token == b.token)
    }
}

fn quarantined(member: &str) -> Finding {
    Finding::new(
        Severity::Warning,
        format!("{member} may have lost data of this quorum and grants nothing for now."),
        "It joins by itself after the longest ttl; find out why it lost data, or set it to keep \
                 every write that it acknowledges.",
    )
}

/// The error names the member.
fn silent(error: &Error) -> Finding {
    Finding::new(
        Severity::Warning,
        format!("A member does not answer: {}", why(error)),
        "Bring it back before another one fails.",
    )
}
