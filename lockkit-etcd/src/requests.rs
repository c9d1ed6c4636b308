//! Conditions and operations of which transactions are made, and what their answers have in common.
//! No I/O.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget,
    TxnOp, TxnResponse,
};
use lockkit_core::clock::Moment;
use lockkit_core::driver::Acquisition;
use lockkit_core::{Error, Result, Token};

use crate::client::{BACKEND, EtcdError, EtcdResult};
use crate::keys::end_of_claims;
use crate::queue_snapshot::StoredClaim;

/// What the response to a request says of one operation.
pub(crate) struct TxnOutcome {
    pub(crate) txn: TxnResponse,
    /// That of the whole request.
    pub(crate) revision: i64,
    /// When it was sent.
    pub(crate) sent: Moment,
    /// Whether every request for the operation was answered.
    pub(crate) certain: bool,
}

/// What follows from the response to an acquire.
pub(crate) enum NextStep<P> {
    Done(Acquisition),
    /// Another request.
    Send(P),
}

/// "This key was created then", and with 0 "there is no such key".
pub(crate) fn created(key: &[u8], revision: i64) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, revision)
}

/// "There is no key in this range."
pub(crate) fn none_in(start: &[u8], end: &[u8]) -> Compare {
    // Of a range, a comparison must be true for all keys, and for an empty one it is about 0.
    created(start, 0).with_range(end)
}

/// "There is no claim in this queue."
pub(crate) fn none_of(list: &[u8]) -> Compare {
    none_in(list, &end_of_claims(list))
}

/// "This key was written last then."
pub(crate) fn written(key: &[u8], revision: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// "This key was not written since."
pub(crate) fn unchanged(stored: &StoredClaim) -> Compare {
    written(&stored.key, stored.modified)
}

pub(crate) fn put(key: &[u8], value: impl Into<Vec<u8>>, lease: i64) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// Moves a key to another lease, and leaves its value.
pub(crate) fn put_lease(key: &[u8], lease: i64) -> TxnOp {
    TxnOp::put(key, Vec::new(), Some(PutOptions::new().with_ignore_value().with_lease(lease)))
}

pub(crate) fn delete(key: &[u8]) -> TxnOp {
    TxnOp::delete(key, None::<DeleteOptions>)
}

/// A queue, with the limit that it is fixed to.
pub(crate) fn get_list(list: &[u8]) -> TxnOp {
    TxnOp::get(list, Some(GetOptions::new().with_prefix()))
}

/// The last keys of a queue, by their position in the queue.
pub(crate) fn get_last(list: &[u8], n: i64) -> TxnOp {
    let last = GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend);
    TxnOp::get(list, Some(last.with_limit(n)))
}

/// The last key of a queue before a position in the queue.
pub(crate) fn get_last_before(list: &[u8], created: i64) -> TxnOp {
    let last = GetOptions::new().with_range(end_of_claims(list));
    let last = last.with_sort(SortTarget::Create, SortOrder::Descend).with_limit(1);
    TxnOp::get(list, Some(last.with_max_create_revision(created - 1)))
}

/// Two ranges, as asked for.
pub(crate) fn pair(ranges: Vec<GetResponse>) -> EtcdResult<[GetResponse; 2]> {
    <[GetResponse; 2]>::try_from(ranges).map_err(|_| unexpected_response())
}

/// The error for an answer that does not fit the question.
pub(crate) fn unexpected_response() -> EtcdError {
    Error::permanent(BACKEND, "etcd's answer does not fit the request").into()
}

pub(crate) fn token_of(created: i64) -> Result<Token> {
    let token = u64::try_from(created).ok().and_then(Token::new);
    token.ok_or_else(|| Error::permanent(BACKEND, "a revision that is no positive number"))
}
