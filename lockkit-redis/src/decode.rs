//! What the scripts answer, decoded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, BatchError, ClaimEnd, Evidence, Grant, LeaseStart, Released, Renewal,
};
use lockkit_core::state::ClaimState;
use lockkit_core::{BreakRecord, Claim, Error, LossReason, Mode, Token};
use redis::{ServerError, Value};

use crate::error::{RequestError, to_error};
use crate::peer::Response;
use crate::{BACKEND, keys};

/// An answer that no script of this crate gives. Only its form is said: it may hold the id of a
/// claim, which releases it, or what a register keeps.
pub(crate) fn unexpected(value: &Value) -> Error {
    Error::permanent(crate::BACKEND, format!("an answer of an unknown form: {}", form(value)))
}

fn form(value: &Value) -> String {
    match value {
        Value::Nil => "nothing".to_owned(),
        Value::Int(_) => "a number".to_owned(),
        Value::BulkString(bytes) => format!("{} bytes", bytes.len()),
        Value::SimpleString(text) => format!("a status of {} bytes", text.len()),
        Value::Okay => "OK".to_owned(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().take(8).map(form).collect();
            format!("[{}]", items.join(", "))
        }
        Value::ServerError(error) => format!("the error {}", error.code()),
        _ => "of another type".to_owned(),
    }
}

pub(crate) fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(unexpected(&other)),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        other => text(other)?.parse().ok(),
    }
}

/// The facts of an answer to `INFO`.
pub(crate) fn facts(info: &str) -> HashMap<&str, &str> {
    info.lines().filter_map(|line| line.trim_end().split_once(':')).collect()
}

/// What is said of a claim, and of one that waits also for how long the lease lasts on which that
/// depends.
pub(crate) type Queued<T> = (T, Option<Duration>);

/// What a renewal says of a claim.
pub(crate) struct ClaimRenewal {
    pub(crate) renewal: Renewal,
    /// As in [`Queued`].
    pub(crate) lease: Option<Duration>,
    /// What the answer tells of its server.
    pub(crate) evidence: Option<Arc<Evidence>>,
}

/// What `renew.lua` answers about these claims, and the time of its server.
pub(crate) fn renewals(
    claims: &[Arc<Claim>],
    response: Response<Value>,
) -> Result<Vec<Result<ClaimRenewal, Error>>, Error> {
    let mut answers = array(response.value)?;
    if answers.len() != claims.len() + 1 {
        return Err(unexpected(&Value::Array(answers)));
    }
    let time = answers.pop().as_ref().and_then(number);
    let time = time.and_then(|time| u64::try_from(time).ok()).map(Duration::from_micros);
    let evidence = response.peer.map(|peer| peer.evidence(time));
    let each = claims.iter().zip(&answers).map(|(claim, answer)| {
        let (renewal, lease) = renewal(claim, answer)?;
        Ok(ClaimRenewal { renewal, lease, evidence: evidence.clone() })
    });
    Ok(each.collect())
}

/// A grant that replicas are to have: the claim must still hold once they have all that was written.
pub(crate) fn still_holds(renewed: Result<ClaimRenewal, Error>) -> Result<(), Error> {
    match renewed?.renewal {
        Renewal::Holds(_) => Ok(()),
        _ => {
            let taken_over = "another server took over before replicas had the grant";
            Err(Error::retryable(BACKEND, taken_over))
        }
    }
}

/// Behind how many, and for how long the lease lasts on which that depends.
fn waits(ahead: &Value, lease: &Value) -> Option<(u32, Option<Duration>)> {
    let lease = u64::try_from(number(lease)?).unwrap_or_default();
    Some((number(ahead)?.try_into().ok()?, Some(Duration::from_millis(lease))))
}

/// An answer about one claim.
pub(crate) fn renewal(claim: &Claim, value: &Value) -> Result<Queued<Renewal>, Error> {
    let parsed = match value {
        Value::ServerError(error) => return Err(to_error(error.clone().into())),
        Value::Int(0) => Some((Renewal::Ended(ClaimEnd::NotFound), None)),
        Value::Array(items) => match items.as_slice() {
            [record] => Some((Renewal::Ended(ClaimEnd::Broken(break_record(record))), None)),
            [ahead, lease] => {
                waits(ahead, lease).map(|(ahead, lease)| (Renewal::Waits { ahead }, lease))
            }
            _ => None,
        },
        other => token(other).map(|token| (Renewal::Holds(grant(claim, token)), None)),
    };
    parsed.ok_or_else(|| unexpected(value))
}

pub(crate) fn grant(claim: &Claim, token: Token) -> Grant {
    let ttl = Duration::from_millis(keys::millis(claim.hold_ttl));
    Grant { token, ttl, start: LeaseStart::LastAnswered, margin: Duration::ZERO }
}

pub(crate) fn token(value: &Value) -> Option<Token> {
    Token::new(u64::try_from(number(value)?).ok()?)
}

/// The answers to the claims of one call, in their order; a single 1 is the answer to each, and a
/// single text that to the only one.
pub(crate) fn each(
    Response { value, ambiguous, .. }: Response<Value>,
    count: usize,
) -> Result<(Vec<Value>, u32), BatchError> {
    match value {
        Value::Int(1) => Ok((vec![Value::Int(1); count], ambiguous)),
        only @ Value::BulkString(_) if count == 1 => Ok((vec![only], ambiguous)),
        Value::Array(items) if items.len() == count => Ok((items, ambiguous)),
        other => Err(BatchError::unknown(unexpected(&other)).after(ambiguous)),
    }
}

/// One result for each operation of a call.
pub(crate) type Outcomes<T> = Vec<Result<Attempted<T>, BatchError>>;

/// A result after so many attempts without an answer.
pub(crate) fn after<T>(
    ambiguous: u32,
    result: Result<T, BatchError>,
) -> Result<Attempted<T>, BatchError> {
    match result {
        Ok(result) => Ok(Attempted::after(ambiguous, result)),
        Err(error) => Err(error.after(ambiguous)),
    }
}

/// The error of one claim of a call.
fn refused(error: &ServerError) -> BatchError {
    let RequestError { error, ambiguous, .. } = RequestError::of(error.clone().into());
    BatchError::refused(to_error(error)).after(ambiguous)
}

/// The answer to a release.
pub(crate) fn released(value: &Value) -> Result<Released, BatchError> {
    match value {
        Value::Int(1) => Ok(Released::Removed),
        Value::Int(2) => Ok(Released::NotFound),
        Value::Int(3) => Ok(Released::NoSuchLock),
        Value::ServerError(error) => Err(refused(error)),
        other => Err(BatchError::unknown(unexpected(other))),
    }
}

/// The answer to an acquire.
pub(crate) fn acquisition(claim: &Claim, value: &Value) -> Result<Queued<Acquisition>, BatchError> {
    let items = match value {
        Value::ServerError(error) => return Err(refused(error)),
        Value::Array(items) => items.as_slice(),
        _ => &[],
    };
    let decoded = match items {
        [] => token(value).map(|token| (Acquisition::Granted(grant(claim, token)), None)),
        [first, rest @ ..] => match (text(first), rest) {
            (Some("waits"), [ahead, lease]) => {
                waits(ahead, lease).map(|(ahead, lease)| (Acquisition::Queued { ahead }, lease))
            }
            (Some("busy"), []) => Some((Acquisition::Busy, None)),
            (Some("limit"), [in_use]) => {
                let in_use = number(in_use).and_then(|n| n.try_into().ok()).unwrap_or_default();
                return Err(BatchError::refused(claim.other_limit(in_use)));
            }
            (Some("broken"), [record]) => {
                let reason = LossReason::Broken(break_record(record));
                return Err(BatchError::refused(Error::lost(reason)));
            }
            _ => None,
        },
    };
    decoded.ok_or_else(|| BatchError::unknown(unexpected(value)))
}

/// The record of a break; an empty one should it not be readable.
pub(crate) fn break_record(value: &Value) -> BreakRecord {
    let record = text(value).and_then(|json| serde_json::from_str(json).ok());
    record.unwrap_or_else(|| {
        let unknown = keys::decode_label("").0;
        BreakRecord::from_parts(unknown, 0, None, false)
    })
}

/// A queue as `inspect.lua` shows it.
pub(crate) fn queue(value: Value) -> Result<(Vec<ClaimState>, Option<BreakRecord>), Error> {
    let items = array(value)?;
    let [now, last_break, capacity, holders, claims @ ..] = items.as_slice() else {
        return Err(unexpected(&Value::Array(items)));
    };
    let (now, capacity) = (number(now).unwrap_or_default(), number(capacity).unwrap_or_default());
    let holders = number(holders).unwrap_or_default();
    let mut queue = Vec::with_capacity(claims.len());
    for (rank, claim) in claims.iter().enumerate() {
        let state = claim_state(claim, now, capacity, (rank as i64) < holders);
        queue.extend(state.ok_or_else(|| unexpected(claim))?);
    }
    let last_break = text(last_break).map(|_| break_record(last_break));
    Ok((queue, last_break))
}

/// One claim; nothing when its lease has ended.
fn claim_state(value: &Value, now: i64, capacity: i64, holds: bool) -> Option<Option<ClaimState>> {
    let Value::Array(items) = value else { return None };
    let [left, words] = items.as_slice() else { return None };
    let left = number(left)?;
    if left <= 0 {
        return Some(None);
    }
    let mut words = text(words)?.splitn(10, ' ');
    let mut next = || words.next();
    let (mode, token) = (next()?, Token::new(next()?.parse().ok()?)?);
    let weight = next()?.parse().ok()?;
    let hold: u64 = next()?.parse().ok()?;
    let (_wait, _client) = (next()?, next()?);
    let (queued, held): (i64, i64) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let broken = next()? == "1";
    let (client, note) = keys::decode_label(next()?);
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => Mode::Permits { permits: weight, limit: capacity.try_into().ok()? },
    };
    let ago = |then: i64| Duration::from_micros((now - then).try_into().unwrap_or_default());
    let mut state = ClaimState::new(token, mode, client);
    state.note = note;
    state.ttl = Duration::from_millis(hold);
    state.expires_in = Duration::from_millis(left as u64);
    state.queued_for = ago(queued);
    state.held_for = holds.then(|| ago(held));
    state.broken = broken;
    Some(Some(state))
}
