//! Looking where a claim stands. Changes nothing.

use etcd_client::{GetResponse, KeyValue, Txn, TxnOp};
use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::{BreakRecord, Claim, Mode};

use crate::calls::{EtcdError, ranges, revision};
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::requests::{get_last_before, get_list, unexpected_response};

/// What a look at a list showed to one of its claims.
pub(crate) struct Look {
    pub(crate) own: Option<Entry>,
    pub(crate) line: Line,
    pub(crate) broken: Option<BreakRecord>,
    /// When it was asked for.
    pub(crate) sent: Moment,
}

impl Locks {
    /// One look at the list of a claim, the claim's own key among them, and at its break.
    pub(crate) async fn look(&self, claim: &Claim) -> Result<Look, EtcdError> {
        // What was known when it was asked: the key may be another claim's when the answer comes.
        let (key, created) = self.key_of(claim);
        let list = get_list(&self.root.list(&claim.key));
        self.look_at(claim, &key, created, vec![list]).await
    }

    /// The same for one that waits in line, where no more of the list is shown than matters to it:
    /// who wants the lock alone needs no more than the last one ahead.
    pub(crate) async fn look_ahead(&self, claim: &Claim) -> Result<Look, EtcdError> {
        let (Mode::Exclusive, (key, Some(created))) = (claim.mode, self.key_of(claim)) else {
            return self.look(claim).await;
        };
        let ahead = get_last_before(&self.root.list(&claim.key), created);
        self.look_at(claim, &key, Some(created), vec![ahead, TxnOp::get(&*key, None)]).await
    }

    /// One look at a claim's break, and at these ranges of its list.
    async fn look_at(
        &self,
        claim: &Claim,
        key: &[u8],
        created: Option<i64>,
        mut steps: Vec<TxnOp>,
    ) -> Result<Look, EtcdError> {
        let sent = SteadyClock.now();
        steps.push(TxnOp::get(self.root.broken(&claim.key, key), None));
        let answer = self.calls.txn(Txn::new().and_then(steps)).await?.answer;
        let mut shown = ranges(&answer);
        let broken = shown.pop().ok_or_else(unexpected_response)?;
        let kvs: Vec<_> = shown.iter().flat_map(GetResponse::kvs).cloned().collect();
        let hidden = i64::from(shown.iter().any(GetResponse::more));
        let line = Line::of(&kvs, kvs.len() as i64 + hidden, revision(&answer));
        Ok(Look {
            own: line.own(key, created).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
            sent,
        })
    }
}

pub(crate) fn record(kv: &KeyValue) -> Option<BreakRecord> {
    serde_json::from_slice(kv.value()).ok()
}
