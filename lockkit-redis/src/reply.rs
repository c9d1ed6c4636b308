//! What the scripts answer, taken apart.

use std::time::Duration;

use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd, Grant, LeaseStart, Renewal, Replies, Reply,
};
use lockkit_core::state::ClaimState;
use lockkit_core::{BreakRecord, Claim, Error, LossReason, Mode, Token};
use redis::Value;

use crate::failure::to_error;
use crate::keys;

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

/// What became of a claim; of one that waits also when the lease ends on which that depends.
pub(crate) type Told = (Renewal, Option<Duration>);

/// Behind how many, and for how long the lease lasts on which that depends.
fn waits(ahead: &Value, lease: &Value) -> Option<(u32, Option<Duration>)> {
    let lease = u64::try_from(number(lease)?).unwrap_or_default();
    Some((number(ahead)?.try_into().ok()?, Some(Duration::from_millis(lease))))
}

/// An answer about one claim.
pub(crate) fn renewal(claim: &Claim, value: &Value) -> Result<Told, Error> {
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
pub(crate) fn to_each(
    sent: Attempted<Value>,
    count: usize,
    read: impl Fn(usize, &Value) -> Result<Reply, Error>,
) -> Result<Replies, Error> {
    let read = |i, value: &Value| match value {
        Value::ServerError(error) => Err(to_error(error.clone().into())),
        value => Ok(Attempted::after(sent.ambiguous, read(i, value)?)),
    };
    match &sent.result {
        all @ Value::Int(1) => Ok((0..count).map(|i| read(i, all)).collect()),
        only @ Value::BulkString(_) if count == 1 => Ok(vec![read(0, only)]),
        Value::Array(items) if items.len() == count => {
            Ok(items.iter().enumerate().map(|(i, value)| read(i, value)).collect())
        }
        other => Err(unexpected(other)),
    }
}

/// The answer to an acquire.
pub(crate) fn acquisition(
    claim: &Claim,
    value: &Value,
) -> Result<(Acquisition, Option<Duration>), Error> {
    let Value::Array(items) = value else {
        let token = token(value).ok_or_else(|| unexpected(value))?;
        return Ok((Acquisition::Granted(grant(claim, token)), None));
    };
    let Some((first, rest)) = items.split_first() else { return Err(unexpected(value)) };
    let parsed = match (text(first), rest) {
        (Some("waits"), [ahead, lease]) => {
            waits(ahead, lease).map(|(ahead, lease)| (Acquisition::Queued { ahead }, lease))
        }
        (Some("busy"), []) => Some((Acquisition::Busy, None)),
        (Some("limit"), [in_use]) => {
            let in_use = number(in_use).and_then(|n| n.try_into().ok()).unwrap_or_default();
            return Err(claim.other_limit(in_use));
        }
        (Some("broken"), [record]) => {
            let reason = LossReason::Broken(break_record(record));
            return Err(Error::Lost { reason });
        }
        _ => None,
    };
    parsed.ok_or_else(|| unexpected(value))
}

/// The record of a break; an empty one should it not be readable.
pub(crate) fn break_record(value: &Value) -> BreakRecord {
    let record = text(value).and_then(|json| serde_json::from_str(json).ok());
    record.unwrap_or_else(|| {
        let nobody = keys::shown("").0;
        BreakRecord { by: nobody, at_unix_ms: 0, reason: None, forced: false }
    })
}

/// One list as `inspect.lua` shows it.
pub(crate) fn line(value: Value) -> Result<(Vec<ClaimState>, Option<BreakRecord>), Error> {
    let items = array(value)?;
    let [now, last_break, capacity, holders, claims @ ..] = items.as_slice() else {
        return Err(unexpected(&Value::Array(items)));
    };
    let (now, capacity) = (number(now).unwrap_or_default(), number(capacity).unwrap_or_default());
    let holders = number(holders).unwrap_or_default();
    let mut line = Vec::with_capacity(claims.len());
    for (rank, claim) in claims.iter().enumerate() {
        let standing = standing(claim, now, capacity, (rank as i64) < holders);
        line.extend(standing.ok_or_else(|| unexpected(claim))?);
    }
    let last_break = text(last_break).map(|_| break_record(last_break));
    Ok((line, last_break))
}

/// One claim; nothing when its lease has ended.
fn standing(value: &Value, now: i64, capacity: i64, holds: bool) -> Option<Option<ClaimState>> {
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
    let (identity, note) = keys::shown(next()?);
    let mode = match mode {
        "x" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => Mode::Permits { permits: weight, limit: capacity.try_into().ok()? },
    };
    let ago = |then: i64| Duration::from_micros((now - then).try_into().unwrap_or_default());
    let mut standing = ClaimState::new(token, mode, identity);
    standing.note = note;
    standing.ttl = Duration::from_millis(hold);
    standing.expires_in = Duration::from_millis(left as u64);
    standing.queued_for = ago(queued);
    standing.held_for = holds.then(|| ago(held));
    standing.broken = broken;
    Some(Some(standing))
}
