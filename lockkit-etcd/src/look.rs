//! Looking where a claim stands. Changes nothing.

use etcd_client::{GetResponse, KeyValue, Txn, TxnOp};
use lockkit_core::clock::{BootClock, Clock, Moment};
use lockkit_core::{BreakRecord, Claim, Mode};

use crate::calls::{Failure, ranges, revision};
use crate::line::{Entry, Line};
use crate::locks::Locks;
use crate::requests::{get_last_before, get_list, odd, pair};

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
    pub(crate) async fn look(&self, claim: &Claim) -> Result<Look, Failure> {
        // What was known when it was asked: the key may be another claim's when the answer comes.
        let (key, created) = self.key_of(claim);
        let (list, sent) = (self.root.list(&claim.key), BootClock.now());
        let broken = TxnOp::get(self.root.broken(&claim.key, &key), None);
        let answer = self.calls.txn(Txn::new().and_then([broken, get_list(&list)])).await?.answer;
        let [broken, shown] = pair(ranges(&answer))?;
        let line = Line::of(shown.kvs(), shown.count(), revision(&answer));
        Ok(Look {
            own: line.own(&key, created).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
            sent,
        })
    }

    /// The same for one that waits in line, where no more of the list is shown than matters to it:
    /// who wants the lock alone needs no more than the last one ahead.
    pub(crate) async fn look_ahead(&self, claim: &Claim) -> Result<Look, Failure> {
        let (Mode::Exclusive, (key, Some(created))) = (claim.mode, self.key_of(claim)) else {
            return self.look(claim).await;
        };
        let (list, sent) = (self.root.list(&claim.key), BootClock.now());
        let broken = TxnOp::get(self.root.broken(&claim.key, &key), None);
        let own = TxnOp::get(&*key, None);
        let txn = Txn::new().and_then([broken, own, get_last_before(&list, created)]);
        let answer = self.calls.txn(txn).await?.answer;
        let shown = <[GetResponse; 3]>::try_from(ranges(&answer)).map_err(|_| odd())?;
        let [broken, own, ahead] = shown;
        let kvs: Vec<_> = ahead.kvs().iter().chain(own.kvs()).cloned().collect();
        let hidden = i64::from(ahead.more());
        let line = Line::of(&kvs, kvs.len() as i64 + hidden, revision(&answer));
        Ok(Look {
            own: line.own(&key, Some(created)).cloned(),
            line,
            broken: broken.kvs().first().and_then(record),
            sent,
        })
    }
}

pub(crate) fn record(kv: &KeyValue) -> Option<BreakRecord> {
    serde_json::from_slice(kv.value()).ok()
}
