//! The version of the format of what is stored, in a key of its own. It is read once a driver, before
//! anything else is sent.

use etcd_client::{Txn, TxnOp};
use lockkit_core::{Error, Result};

use crate::client::{BACKEND, EtcdError, ranges};
use crate::locks::EtcdLocks;
use crate::requests::{created, unexpected_response};

/// The format of keys and values that this driver reads and writes.
const FORMAT: u64 = 1;

impl EtcdLocks {
    /// Makes sure that what is stored here has this driver's format.
    pub(crate) async fn check_format(&self) -> Result<()> {
        self.format.get_or_try_init(|| self.read_format()).await.map(drop)
    }

    async fn read_format(&self) -> Result<()> {
        let key = self.root.format();
        let get = || TxnOp::get(&*key, None);
        let answer = self.client.txn(Txn::new().and_then([get()])).await?.answer;
        let stored = ranges(&answer).pop().ok_or_else(unexpected_response)?;
        if let Some(kv) = stored.kvs().first() {
            return self.judge_format(kv.value());
        }
        let put = TxnOp::put(&*key, FORMAT.to_string(), None);
        let install = Txn::new().when([created(&key, 0)]).and_then([put]).or_else([get()]);
        let answer = match self.client.txn(install).await {
            Ok(reply) => reply.answer,
            // A login that may only read, or a full etcd: nothing else can be written, either.
            Err(EtcdError::Failed { error, .. }) if !error.is_retryable() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match ranges(&answer).first().and_then(|range| range.kvs().first()) {
            Some(kv) => self.judge_format(kv.value()),
            None => Ok(()),
        }
    }

    fn judge_format(&self, stored: &[u8]) -> Result<()> {
        let stored = String::from_utf8_lossy(stored);
        let key = String::from_utf8_lossy(&self.root.format()).into_owned();
        let what_to_do = match stored.parse::<u64>() {
            Ok(FORMAT) => return Ok(()),
            Ok(newer) if newer > FORMAT => "use a newer lockkit here",
            Ok(_) => {
                "stop every program that uses it and delete the keys below this root, or use \
                 another root"
            }
            Err(_) => "this key does not belong to lockkit: use another root",
        };
        let message = format!(
            "what is stored in etcd has format {stored:?} ({key}), and this lockkit has format \
             {FORMAT}: {what_to_do}"
        );
        Err(Error::permanent(BACKEND, message))
    }
}
