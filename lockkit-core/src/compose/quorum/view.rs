//! What a quorum shows: what a majority of its members agree on. And breaking, which begins with
//! looking.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::quarantine::Epoch;
use super::{BACKEND, Shared};
use crate::driver::{Force, LockDriver};
use crate::state::{Cursor, Finding, Health, ListRequest, LockState, Page, Severity, Standing};
use crate::{BreakRecord, Error, Key, Mode, Namespace, Space, Token};

/// How many lists are asked of a member at once.
const PAGE: usize = 1_000;

impl Shared {
    pub(super) async fn inspect(&self, key: &Key) -> Result<LockState, Error> {
        let (states, epochs) = self.look(key).await?;
        Ok(self.merge(key.clone(), states, &epochs))
    }

    async fn look(&self, key: &Key) -> Result<(Vec<(usize, LockState)>, Vec<Epoch>), Error> {
        let looking = (0..self.members.len()).map(|member| {
            let key = key.clone();
            self.ask(member, self.options.member_limit, |driver| async move {
                driver.inspect(&key).await
            })
        });
        let (states, epochs) = tokio::join!(join_all(looking), self.present_epochs());
        Ok((self.enough(states)?, epochs))
    }

    /// The answers with their members, if they are of a majority.
    fn enough<T>(&self, answers: Vec<Result<T, Error>>) -> Result<Vec<(usize, T)>, Error> {
        let some = answers.into_iter().enumerate().filter_map(|(m, a)| Some((m, a.ok()?)));
        let some: Vec<_> = some.collect();
        match some.len() >= self.majority() {
            true => Ok(some),
            false => Err(Error::retryable(BACKEND, "no majority of the members answered")),
        }
    }

    /// One list as a majority has it. What only a minority has is on its way in or out.
    fn merge(&self, key: Key, states: Vec<(usize, LockState)>, epochs: &[Epoch]) -> LockState {
        let mut last_break = None;
        let mut groups: Vec<Vec<Standing>> = Vec::new();
        for (member, state) in states {
            last_break = last_break.max_by_time(state.last_break);
            for mut standing in state.line.into_iter().filter(Standing::holds) {
                standing.token = epochs[member].outward(standing.token).unwrap_or(standing.token);
                match groups.iter_mut().find(|group| same(&group[0], &standing)) {
                    Some(group) => group.push(standing),
                    None => groups.push(vec![standing]),
                }
            }
        }
        groups.retain(|group| group.len() >= self.majority());
        let mut line: Vec<_> = groups.into_iter().map(|group| self.sum(group)).collect();
        line.sort_by_key(|standing| standing.token);
        LockState::new(key, line, last_break)
    }

    /// One claim, from what a majority says of it.
    fn sum(&self, mut group: Vec<Standing>) -> Standing {
        group.sort_by_key(|standing| std::cmp::Reverse(standing.expires_in));
        // It holds for as long as a majority keeps it.
        let expires_in = group[self.majority() - 1].expires_in;
        let broken = group.iter().any(|standing| standing.broken);
        let held_for = group.iter().filter_map(|standing| standing.held_for).max();
        let queued_for = group.iter().map(|standing| standing.queued_for).max();
        let token = group.iter().map(|standing| standing.token).min();
        let mut one = group.swap_remove(0);
        one.token = token.unwrap_or(one.token);
        one.queued_for = queued_for.unwrap_or(Duration::ZERO);
        (one.expires_in, one.broken, one.held_for) = (expires_in, broken, held_for);
        one
    }

    pub(super) async fn break_claim(
        &self,
        key: &Key,
        token: Token,
        force: Force,
        record: &BreakRecord,
    ) -> Result<bool, Error> {
        let (states, epochs) = self.look(key).await?;
        let merged = self.merge(key.clone(), states.clone(), &epochs);
        let Some(aim) = merged.line.iter().find(|standing| standing.token == token) else {
            return Ok(false);
        };
        let limit = self.options.member_limit;
        let mut breaking = Vec::new();
        for (member, state) in &states {
            for standing in &state.line {
                let mut outward = standing.clone();
                outward.token = epochs[*member].outward(standing.token).unwrap_or(standing.token);
                if same(aim, &outward) {
                    let (key, token, record) = (key.clone(), standing.token, record.clone());
                    breaking.push(self.ask(*member, limit, move |driver| async move {
                        driver.break_claim(&key, token, force, &record).await
                    }));
                }
            }
        }
        let answers = join_all(breaking).await;
        if answers.iter().flatten().count() >= self.majority() {
            return Ok(answers.iter().flatten().any(|broken| *broken));
        }
        Err(Error::retryable(BACKEND, "no majority of the members answered"))
    }

    /// Reads all lists of all members and shows those after the cursor. Members list in orders of
    /// their own, so only the whole can be put together.
    pub(super) async fn list(&self, request: &ListRequest) -> Result<Page, Error> {
        let after = request.after.as_ref().map(read_cursor).transpose()?;
        let reading = (0..self.members.len()).map(|member| self.list_at(member, request));
        let mut by_name: BTreeMap<(Space, String), Vec<(usize, LockState)>> = BTreeMap::new();
        let (lists, epochs) = tokio::join!(join_all(reading), self.present_epochs());
        for (member, states) in self.enough(lists)? {
            for state in states {
                let at = (state.key.space, state.key.name.as_str().to_owned());
                by_name.entry(at).or_default().push((member, state));
            }
        }
        let limit = request.limit.max(1);
        let mut page = Page { states: Vec::new(), next: None };
        for (at, states) in by_name {
            let key = states[0].1.key.clone();
            if after.as_ref().is_some_and(|after| at <= *after) {
                continue;
            }
            let state = self.merge(key, states, &epochs);
            if state.is_free() {
                continue;
            }
            if page.states.len() == limit {
                page.next = page.states.last().map(write_cursor);
                break;
            }
            page.states.push(state);
        }
        Ok(page)
    }

    async fn list_at(&self, member: usize, request: &ListRequest) -> Result<Vec<LockState>, Error> {
        let mut request = ListRequest { after: None, limit: PAGE, ..request.clone() };
        let mut states = Vec::new();
        loop {
            let asked = request.clone();
            let listing = self.ask(member, Duration::from_secs(5), |driver| async move {
                driver.list(&asked).await
            });
            let page = listing.await?;
            states.extend(page.states);
            request.after = page.next;
            if request.after.is_none() {
                return Ok(states);
            }
        }
    }

    pub(super) async fn token_base(&self, namespace: &Namespace) -> Result<u64, Error> {
        let limit = self.options.member_limit;
        let asking = (0..self.members.len()).map(|member| self.base_of(member, namespace, limit));
        let bases = self.enough(join_all(asking).await)?;
        let greatest = bases.iter().map(|(_, base)| *base).max().unwrap_or(0);
        // A member that lost its data has lost this as well, and is told; it is no harm if not.
        let behind = bases.iter().filter(|(_, base)| *base < greatest);
        join_all(behind.map(|(m, _)| self.raise_base_of(*m, namespace, greatest))).await;
        Ok(greatest)
    }

    pub(super) async fn raise_token_base(
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
                let message = format!("all members must take a new token base; one said: {error}");
                Err(Error::retryable(BACKEND, message))
            }
        }
    }

    pub(super) async fn health(&self) -> Result<Health, Error> {
        let limit = self.options.member_limit;
        let asking = (0..self.members.len()).map(|member| async move {
            let health = |driver: Arc<dyn LockDriver>| async move { driver.health().await };
            Ok((self.ask(member, limit, health).await?, self.has_sign(member).await?))
        });
        let answers = join_all(asking).await;
        let mut findings = Vec::new();
        for (member, answer) in answers.iter().enumerate() {
            let own =
                |f: &Finding| Finding { what: format!("Member {member}: {}", f.what), ..f.clone() };
            match answer {
                Ok((health, has_sign)) => {
                    findings.extend(health.findings.iter().map(own));
                    if !has_sign {
                        findings.push(quarantined(member));
                    }
                }
                Err(error) => findings.push(silent(member, error)),
            }
        }
        let answered = self.enough(answers)?.len();
        let server = format!("quorum: {answered} of {} members answer", self.members.len());
        if self.members.len() & 1 == 0 {
            findings.push(Finding {
                severity: Severity::Note,
                what: "The number of members is even.".to_owned(),
                advice: "One member fewer survives as many failures.".to_owned(),
            });
        }
        Ok(findings.into_iter().fold(Health::well(server), Health::with))
    }
}

/// Whether two members speak of one claim, as far as can be seen without its id. A member that was
/// repaired may have a greater token for it.
fn same(a: &Standing, b: &Standing) -> bool {
    let alike = a.mode == b.mode && a.identity == b.identity && a.note == b.note && a.ttl == b.ttl;
    alike && (a.mode == Mode::Exclusive || a.token == b.token)
}

trait Later {
    fn max_by_time(self, other: Self) -> Self;
}

impl Later for Option<BreakRecord> {
    fn max_by_time(self, other: Self) -> Self {
        match (self, other) {
            (Some(a), Some(b)) if b.at_unix_ms > a.at_unix_ms => Some(b),
            (Some(a), _) => Some(a),
            (None, b) => b,
        }
    }
}

fn quarantined(member: usize) -> Finding {
    Finding {
        severity: Severity::Warning,
        what: format!("Member {member} has no data of this quorum and grants nothing for now."),
        advice: "It joins by itself after the longest ttl; find out why its data went.".to_owned(),
    }
}

fn silent(member: usize, error: &Error) -> Finding {
    Finding {
        severity: Severity::Warning,
        what: format!("Member {member} does not answer: {error}"),
        advice: "Bring it back before another one fails.".to_owned(),
    }
}

fn write_cursor(state: &LockState) -> Cursor {
    let space = match state.key.space {
        Space::Lock => b'l',
        Space::Semaphore => b's',
    };
    Cursor(std::iter::once(space).chain(state.key.name.as_str().bytes()).collect())
}

fn read_cursor(cursor: &Cursor) -> Result<(Space, String), Error> {
    let parts = cursor.0.split_first().and_then(|(space, name)| {
        let space = match space {
            b'l' => Space::Lock,
            b's' => Space::Semaphore,
            _ => return None,
        };
        Some((space, String::from_utf8(name.to_vec()).ok()?))
    });
    parts.ok_or_else(|| Error::config("this cursor is not of a quorum's listing"))
}
