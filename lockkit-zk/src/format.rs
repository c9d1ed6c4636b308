//! The version of the format of what is stored, in a znode of its own. It is read once a driver, before
//! anything else is sent.

use lockkit_core::{Error, Result};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Error as ZkError, Permission};

use crate::errors::{BACKEND, failed};
use crate::locks::ZkLocks;

/// The format of nodes and their data that this driver reads and writes.
const FORMAT: u64 = 1;
/// How often it is read again because other drivers install it, or because folders are removed.
const ATTEMPTS: usize = 8;

impl ZkLocks {
    /// Makes sure that what is stored here has this driver's format.
    pub(crate) async fn check_format(&self) -> Result<()> {
        self.format.get_or_try_init(|| self.read_format()).await.map(drop)
    }

    async fn read_format(&self) -> Result<()> {
        let session = self.sessions.get().await?;
        let path = self.layout.format();
        // Any login may read it, so that one without rights gets the error where it needs them.
        let readable = [
            Acl::new(Permission::ALL, AuthId::authed()),
            Acl::new(Permission::READ, AuthId::anyone()),
        ];
        let acls = match self.sessions.options().private {
            true => Acls::new(&readable),
            false => self.sessions.options().acls(),
        };
        let options = CreateMode::Persistent.with_acls(acls);
        for _ in 0..ATTEMPTS {
            let read = session.answer(session.client.get_data(&path)).await;
            match read {
                Ok((stored, _)) => return judge(&path, &stored),
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
            let data = FORMAT.to_string();
            match self.create_with(&session, &path, data.as_bytes(), &options).await {
                // A login that may not create it cannot create anything else, either.
                Ok(()) | Err(ZkError::NoAuth) => return Ok(()),
                Err(ZkError::NodeExists | ZkError::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Error::retryable(BACKEND, format!("{path} came and went again and again")))
    }
}

fn judge(path: &str, stored: &[u8]) -> Result<()> {
    let stored = String::from_utf8_lossy(stored);
    let what_to_do = match stored.parse::<u64>() {
        Ok(FORMAT) => return Ok(()),
        Ok(newer) if newer > FORMAT => "use a newer lockkit here",
        Ok(_) => {
            "stop every program that uses it and delete the node \"lockkit\" with all below it, or use \
             another chroot"
        }
        Err(_) => "this node does not belong to lockkit: use another chroot",
    };
    let message = format!(
        "what is stored in ZooKeeper has format {stored:?} ({path}), and this lockkit has format \
         {FORMAT}: {what_to_do}"
    );
    Err(Error::permanent(BACKEND, message))
}
