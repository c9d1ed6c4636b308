//! Writes in ZooKeeper that only the holder of a lock can make: what [`Fence`] is for a
//! `MultiWriter`. No I/O.
//!
//! A fence adds the condition that the lock is held. If it is not when the transaction is carried
//! out, the whole of it fails, with [`Error::NoNode`](zookeeper_client::Error::NoNode) at the place
//! of the condition.
//!
//! The transaction may come from any client of the same ensemble, in a session of its own as well. If
//! it has a chroot, it must be that of the client that the driver uses; a driver made from a URL
//! uses one without.
//!
//! The condition is that the claim's node is there. Its path is never used again, and anything that
//! lets the lock go removes it; a graceful break does not before the lock can go to another client.
//! A client in another language can check the same: the path is [`Anchor::at`](lockkit_core::Anchor),
//! with version -1.
//!
//! ```no_run
//! use lockkit_core::{Fence, Guard};
//! use lockkit_zk::zookeeper_client::{Client, Error as ZkError, MultiWriteError};
//! # async fn example(guard: Guard, client: Client) -> Result<(), Box<dyn std::error::Error>> {
//! let mut write = client.new_multi_writer();
//! guard.fence(&mut write).await?;
//! write.add_set_data("/balance", b"100", None)?;
//! match write.commit().await {
//!     Ok(_) => {}
//!     // The lock was lost, and nothing was written.
//!     Err(MultiWriteError::OperationFailed { index: 0, source: ZkError::NoNode }) => {}
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```

use async_trait::async_trait;
use lockkit_core::{Error, Fence, HeldLock, Result};
use zookeeper_client::MultiWriter;

use crate::ZkDriver;
use crate::errors::BACKEND;

#[async_trait]
impl<'a> Fence<MultiWriter<'a>, ZkDriver> for HeldLock {
    async fn fence(&self, tx: &mut MultiWriter<'a>) -> Result<()> {
        let path = String::from_utf8(self.anchor(BACKEND).await?.at);
        let path = path.map_err(|error| Error::permanent(BACKEND, error))?;
        tx.add_check_version(&path, -1).map_err(|error| Error::permanent(BACKEND, error))
    }
}
