//! Writes in etcd that only the holder of a lock can make: what [`Fence`] is for the conditions of a
//! transaction. No I/O.
//!
//! A fence adds the condition that the lock is held to those of a transaction. If it is not when the
//! transaction is carried out, that does not succeed, and nothing is written.
//!
//! The transaction may go through any client of the same cluster; a client with a namespace of its
//! own does not see lockkit's keys. One transaction may have the conditions of several locks.
//!
//! The condition is that the claim's key is the one that was created when the claim was put in its
//! queue. A claim that holds goes on holding for as long as its key is there. Anything that lets
//! the lock go removes the key; a graceful break does not before the lock can go to another client.
//! A client in another language can compare the same: the key is
//! [`Anchor::at`](lockkit_core::Anchor), its create revision the token there.
//!
//! ```no_run
//! use lockkit_core::{Fence, Guard};
//! use lockkit_etcd::etcd_client::{Client, Txn, TxnOp};
//! # async fn example(guard: Guard, mut client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let mut held = Vec::new();
//! guard.fence(&mut held).await?;
//! let write = Txn::new().when(held).and_then([TxnOp::put("balance", "100", None)]);
//! if !client.txn(write).await?.succeeded() {
//!     // The lock was lost, and nothing was written.
//! }
//! # Ok(())
//! # }
//! ```

use async_trait::async_trait;
use etcd_client::Compare;
use lockkit_core::{Fence, HeldLock, Result};

use crate::client::BACKEND;
use crate::driver::EtcdDriver;
use crate::requests::created;

#[async_trait]
impl Fence<Vec<Compare>, EtcdDriver> for HeldLock {
    async fn fence(&self, tx: &mut Vec<Compare>) -> Result<()> {
        let anchor = self.anchor(BACKEND).await?;
        tx.push(created(&anchor.at, anchor.token.as_i64()));
        Ok(())
    }
}
