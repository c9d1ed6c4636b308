//! The condition "this lock is still held", for transactions of the program's own. May send nothing.

use zookeeper_client::{CheckWriter, Client, Error as ZkError, MultiWriter};

/// Holds in a transaction of ZooKeeper for as long as a claim holds its lock; see
/// [`ZkDriver::fence`](crate::ZkDriver::fence).
///
/// It stands for the claim's node, whose path is never used again. Polite breaking does not end it
/// before the lock can go to somebody else; anything that lets the lock go does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    path: String,
}

impl Fence {
    pub(crate) fn new(path: String) -> Self {
        Self { path }
    }

    /// Begins a transaction that does nothing unless the lock is held. It then fails with
    /// [`CheckFailed`](zookeeper_client::CheckWriteError::CheckFailed).
    ///
    /// Any client of the same ensemble will do, in a session of its own as well. If it has a
    /// chroot, it must be that of the client that the driver uses; a driver made from a URL uses
    /// one without.
    pub fn writer<'a>(&self, client: &'a Client) -> Result<CheckWriter<'a>, ZkError> {
        client.new_check_writer(&self.path, None)
    }

    /// Adds the condition to a transaction that was begun. If the lock is not held then, the whole
    /// transaction fails, with [`Error::NoNode`](ZkError::NoNode) at the place of the condition.
    pub fn add_to(&self, transaction: &mut MultiWriter<'_>) -> Result<(), ZkError> {
        transaction.add_check_version(&self.path, -1)
    }

    /// The claim's node, for clients in other languages: `check` it with version -1.
    pub fn path(&self) -> &str {
        &self.path
    }
}
