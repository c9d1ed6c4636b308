//! What the driver's trait says, written down as plainly as possible: a vector a list, looked
//! through from the front at every verb. No index, no sum, no wake-up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Acquisition, BreakMode, ClaimEnd, Grant, LeaseStart, Patience, Released, Renewal, SetLimit,
};
use lockkit_core::state::{ClaimState, LockState};
use lockkit_core::{BreakRecord, Claim, Error, Key, LossReason, Mode, Token};

#[derive(Clone)]
struct Place {
    claim: Arc<Claim>,
    token: Token,
    mode: Mode,
    expires: Moment,
    queued_at: Moment,
    held_since: Option<Moment>,
    broken: Option<BreakRecord>,
}

#[derive(Default)]
pub(crate) struct Model {
    lists: HashMap<Key, Vec<Place>>,
    last_token: u64,
    limits: HashMap<Key, u32>,
    /// Whose renewals say that they were broken, and until when.
    told: Vec<(Arc<Claim>, BreakRecord, Moment)>,
    last_breaks: HashMap<Key, (BreakRecord, Moment)>,
}

impl Model {
    pub(crate) fn last_token(&self) -> u64 {
        self.last_token
    }

    fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token::new(self.last_token).unwrap()
    }

    /// Ended claims go, and those who may begin to hold.
    fn settle(&mut self, key: &Key, now: Moment) -> &mut Vec<Place> {
        let line = self.lists.entry(key.clone()).or_default();
        line.retain(|p| p.expires > now);
        for at in 0..line.len() {
            if line[at].held_since.is_none() && may_hold(&line[..at], line[at].mode) {
                let place = &mut line[at];
                place.held_since = Some(now);
                if place.broken.is_none() {
                    place.expires = place.expires.max(now.after(place.claim.hold_ttl));
                }
            }
        }
        line
    }

    fn at(&mut self, claim: &Claim, now: Moment) -> Option<usize> {
        let line = self.settle(&claim.key, now);
        line.iter().position(|p| p.claim.id == claim.id)
    }

    fn place(&mut self, claim: &Claim, at: usize) -> &mut Place {
        &mut self.lists.get_mut(&claim.key).unwrap()[at]
    }

    fn ended(&self, claim: &Claim, now: Moment) -> Option<BreakRecord> {
        let told = self.told.iter().rev();
        told.into_iter()
            .find(|(c, _, until)| c.id == claim.id && *until > now)
            .map(|(_, record, _)| record.clone())
    }

    pub(crate) fn acquire(
        &mut self,
        claim: &Arc<Claim>,
        patience: Patience,
        now: Moment,
    ) -> Result<Acquisition, Error> {
        let given = self.limits.get(&claim.key).copied();
        if let (None, Mode::Permits { permits, limit }) = (given, claim.mode)
            && permits > limit
        {
            // What was given a limit would have made it wait.
            let message = format!("{permits} permits of {limit}: ask for 1 to {limit}");
            return Err(Error::config(message));
        }
        if let Some(at) = self.at(claim, now) {
            let holds = self.place(claim, at).held_since.is_some();
            if !holds && patience == Patience::Try {
                self.release(claim, now);
                return Ok(Acquisition::Busy);
            }
            let answer = match self.renew(claim, now) {
                Renewal::Holds(grant) => Acquisition::Granted(grant),
                Renewal::Waits { ahead } => Acquisition::Queued { ahead },
                Renewal::Ended(ClaimEnd::Broken(record)) => return Err(lost(Some(record))),
                Renewal::Ended(_) => unreachable!("it is in line"),
            };
            self.told.retain(|(c, _, _)| c.id != claim.id);
            return Ok(answer);
        }
        let line = self.settle(&claim.key, now).clone();
        let in_use = line.first().and_then(|p| p.mode.limit());
        let in_use = given.or(in_use);
        if let (Some(in_use), Some(asked)) = (in_use, claim.mode.limit())
            && in_use != asked
        {
            let name = claim.key.name.to_string();
            return Err(Error::limit_mismatch(name, in_use, asked));
        }
        let holds = may_hold(&line, claim.mode);
        let ahead = line.len() as u32;
        if !holds && patience == Patience::Try {
            return Ok(Acquisition::Busy);
        }
        let token = self.next_token();
        let ttl = if holds { claim.hold_ttl } else { claim.wait_ttl };
        let place = Place {
            claim: claim.clone(),
            token,
            mode: claim.mode,
            expires: now.after(ttl),
            queued_at: now,
            held_since: holds.then_some(now),
            broken: None,
        };
        self.forget_last_break(&claim.key, now);
        self.settle(&claim.key, now).push(place);
        self.told.retain(|(c, _, _)| c.id != claim.id);
        Ok(if holds {
            Acquisition::Granted(grant(token, ttl))
        } else {
            Acquisition::Queued { ahead }
        })
    }

    /// Of a list that comes into use again.
    fn forget_last_break(&mut self, key: &Key, now: Moment) {
        let free = self.lists.get(key).is_none_or(Vec::is_empty);
        let old = |(_, at): &(BreakRecord, Moment)| now >= at.after(Duration::from_secs(60));
        if free && self.last_breaks.get(key).is_some_and(old) {
            self.last_breaks.remove(key);
        }
    }

    /// `None` while it waits.
    pub(crate) fn granted(&mut self, claim: &Claim, now: Moment) -> Option<Result<Grant, Error>> {
        let Some(at) = self.at(claim, now) else {
            return Some(Err(lost(self.ended(claim, now))));
        };
        let place = self.place(claim, at);
        if place.broken.is_some() {
            return Some(Err(lost(place.broken.clone())));
        }
        place.held_since?;
        Some(Ok(grant(place.token, claim.hold_ttl)))
    }

    pub(crate) fn renew(&mut self, claim: &Claim, now: Moment) -> Renewal {
        let Some(at) = self.at(claim, now) else {
            return Renewal::Ended(match self.ended(claim, now) {
                Some(record) => ClaimEnd::Broken(record),
                None => ClaimEnd::NotFound,
            });
        };
        let place = self.place(claim, at);
        if let Some(record) = &place.broken {
            return Renewal::Ended(ClaimEnd::Broken(record.clone()));
        }
        if place.held_since.is_none() {
            place.expires = place.expires.max(now.after(claim.wait_ttl));
            return Renewal::Waits { ahead: at as u32 };
        }
        place.expires = place.expires.max(now.after(claim.hold_ttl));
        Renewal::Holds(grant(place.token, claim.hold_ttl))
    }

    pub(crate) fn release(&mut self, claim: &Claim, now: Moment) -> Released {
        let at = self.at(claim, now);
        let line = self.settle(&claim.key, now);
        if line.is_empty() {
            return Released::NoSuchLock;
        }
        let Some(at) = at else {
            return Released::NotFound;
        };
        line.remove(at);
        self.settle(&claim.key, now);
        Released::Removed
    }

    pub(crate) fn shorten(&mut self, claim: &Claim, ttl: Duration, now: Moment) -> Renewal {
        let Some(at) = self.at(claim, now) else {
            return self.renew(claim, now);
        };
        let place = self.place(claim, at);
        if let Some(record) = &place.broken {
            return Renewal::Ended(ClaimEnd::Broken(record.clone()));
        }
        if place.held_since.is_none() {
            return Renewal::Waits { ahead: at as u32 };
        }
        place.expires = now.after(ttl);
        Renewal::Holds(grant(place.token, ttl))
    }

    pub(crate) fn downgrade(&mut self, claim: &Claim, now: Moment) -> Renewal {
        let renewal = self.renew(claim, now);
        if let (Renewal::Holds(_), Some(at)) = (&renewal, self.at(claim, now)) {
            let place = self.place(claim, at);
            if place.mode == Mode::Exclusive {
                place.mode = Mode::Shared;
            }
            self.settle(&claim.key, now);
        }
        renewal
    }

    pub(crate) fn raise(&mut self, claim: &Claim, token: Token, now: Moment) -> Renewal {
        let renewal = self.renew(claim, now);
        if let (false, Some(at)) = (matches!(renewal, Renewal::Ended(_)), self.at(claim, now))
            && self.place(claim, at).token < token
        {
            self.place(claim, at).token = token;
            self.last_token = self.last_token.max(token.get());
            for behind in at + 1..self.lists[&claim.key].len() {
                let place = self.place(claim, behind);
                if place.held_since.is_none() && place.token <= token {
                    let later = self.next_token();
                    self.place(claim, behind).token = later;
                }
            }
        }
        match renewal {
            // The renewal's answer, but for the token.
            Renewal::Holds(old) => {
                let at = self.at(claim, now).unwrap();
                let token = self.place(claim, at).token;
                Renewal::Holds(Grant { token, ..old })
            }
            other => other,
        }
    }

    pub(crate) fn break_claim(
        &mut self,
        key: &Key,
        token: Token,
        force: BreakMode,
        record: &BreakRecord,
        now: Moment,
    ) -> bool {
        let mut told = Vec::new();
        let line = self.settle(key, now);
        for place in line.iter_mut().filter(|p| p.token == token) {
            let ttl = place.claim.hold_ttl.max(place.claim.wait_ttl);
            let until = place.expires.max(now.after(ttl));
            told.push((place.claim.clone(), record.clone(), until));
            place.broken = Some(record.clone());
        }
        if told.is_empty() {
            return false;
        }
        if force == BreakMode::Forced {
            line.retain(|p| p.token != token);
        }
        self.settle(key, now);
        self.told.extend(told);
        self.last_breaks.insert(key.clone(), (record.clone(), now));
        true
    }

    pub(crate) fn resize(&mut self, key: &Key, limit: SetLimit, now: Moment) -> u32 {
        let in_use = self.settle(key, now).first().and_then(|p| p.mode.limit());
        let limit = match limit {
            SetLimit::To(limit) => limit,
            SetLimit::IfUnset(limit) => self.limits.get(key).copied().or(in_use).unwrap_or(limit),
        };
        self.limits.insert(key.clone(), limit);
        for place in self.settle(key, now) {
            if let Mode::Permits { permits, .. } = place.mode {
                place.mode = Mode::Permits { permits, limit };
            }
        }
        self.settle(key, now);
        limit
    }

    /// What is to be seen. Changes nothing.
    pub(crate) fn look(&self, key: &Key, now: Moment) -> LockState {
        let line = self.lists.get(key).cloned().unwrap_or_default();
        let live: Vec<Place> = line.into_iter().filter(|p| p.expires > now).collect();
        let line: Vec<ClaimState> = (0..live.len())
            .map(|at| {
                let place = &live[at];
                let identity = (*place.claim.identity).clone();
                let mut standing = ClaimState::new(place.token, place.mode, identity);
                standing.note = place.claim.note.as_deref().map(str::to_owned);
                standing.ttl = place.claim.hold_ttl;
                standing.expires_in = place.expires.since(now);
                standing.queued_for = now.since(place.queued_at);
                let holds = place.held_since.is_some() || may_hold(&live[..at], place.mode);
                standing.held_for = holds.then(|| now.since(place.held_since.unwrap_or(now)));
                standing.broken = place.broken.is_some();
                standing
            })
            .collect();
        let last_break = self
            .last_breaks
            .get(key)
            .filter(|(_, at)| !line.is_empty() || now < at.after(Duration::from_secs(60)))
            .map(|(record, _)| record.clone());
        LockState::new(key.clone(), line, last_break)
    }
}

fn may_hold(ahead: &[Place], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => ahead.is_empty(),
        Mode::Shared => ahead.iter().all(|p| p.mode == Mode::Shared),
        Mode::Permits { permits, limit } => {
            let taken = ahead.iter().map(|p| match p.mode {
                Mode::Permits { permits, .. } => permits,
                _ => 0,
            });
            taken.sum::<u32>() + permits <= limit
        }
    }
}

fn grant(token: Token, ttl: Duration) -> Grant {
    Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO }
}

fn lost(broken: Option<BreakRecord>) -> Error {
    let reason = broken.map_or(LossReason::Expired, LossReason::Broken);
    Error::lost(reason)
}
