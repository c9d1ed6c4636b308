//! The condition "this lock is still held", for transactions of the program's own on the same etcd.
//! May send nothing.
//!
//! It says that the claim's key is the one that was created when the claim was put in line. A claim
//! that holds goes on holding for as long as its key is there: those ahead of it are gone for good.
//! Polite breaking does not end it before the lock can go to somebody else; anything that lets the
//! lock go removes the key.

use std::sync::PoisonError;

use etcd_client::{Compare, CompareOp};
use lockkit_core::{Error, Key, Lease, LossReason, Token};

use crate::driver::EtcdDriver;

/// What the lease of a lock on etcd has beside the usual. A guard derefs to its lease.
pub trait EtcdLease {
    /// The condition that this lock is still held, for a transaction of the program's own: what is
    /// written under it is written by the holder, or not at all, however long the program stood
    /// still between this call and the write. No I/O.
    ///
    /// `etcd` is the driver that the guard's manager was made with, or a clone of it. The
    /// transaction may go through any client of the same cluster; a client with a namespace of its
    /// own does not see lockkit's keys.
    ///
    /// ```no_run
    /// use lockkit_etcd::etcd_client::{Client, Txn, TxnOp};
    /// use lockkit_etcd::{EtcdDriver, EtcdLease};
    /// # use lockkit_core::Guard;
    /// # async fn example(etcd: EtcdDriver, guard: Guard, mut client: Client)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let held = guard.compare(&etcd)?;
    /// let write = Txn::new().when([held]).and_then([TxnOp::put("balance", "100", None)]);
    /// if !client.txn(write).await?.succeeded() {
    ///     // The lock was lost, and nothing was written.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] when the lock cannot be trusted any more, or is not one of this driver's;
    /// [`Error::Released`] when it was given back.
    fn compare(&self, etcd: &EtcdDriver) -> Result<Compare, Error>;
}

impl EtcdLease for Lease {
    fn compare(&self, etcd: &EtcdDriver) -> Result<Compare, Error> {
        etcd.fence(&self.claim().key, self.token()?)
    }
}

impl EtcdDriver {
    /// The same as [`EtcdLease::compare`] for who has no lease at hand, but the token that it told.
    /// No I/O.
    ///
    /// # Errors
    /// [`Error::Lost`] when this driver has no claim with this token in this list.
    pub fn fence(&self, key: &Key, token: Token) -> Result<Compare, Error> {
        let list = self.inner.root.list(key);
        let bases = self.inner.bases.lock().unwrap_or_else(PoisonError::into_inner);
        let bases = bases.get(key.namespace.as_str()).cloned().unwrap_or_else(|| vec![0]);
        let created = |base: &u64| i64::try_from(token.get().checked_sub(*base)?).ok();
        let created: Vec<_> = bases.iter().filter_map(created).collect();
        let places = self.inner.places();
        let mut entries = places.values().map(|place| &place.entry);
        let mine = entries.find(|e| created.contains(&e.created) && e.key.starts_with(&list));
        match mine {
            Some(entry) => {
                Ok(Compare::create_revision(&*entry.key, CompareOp::Equal, entry.created))
            }
            None => Err(Error::Lost { reason: LossReason::Vanished }),
        }
    }
}
