//! What others see of a lock under which only processes work that the command left behind.
//!
//! The note of a claim cannot change while it holds, so this is a register of its own, whose name
//! has the claim's token: it says nothing of any other holder. A command that leaves nothing behind
//! costs nothing.

use std::collections::HashMap;

use futures_util::{StreamExt, stream};
use lockkit::driver::{RegisterKey, Write};
use lockkit::state::{ClaimState, LockState};
use lockkit::{HeldLock, LockManager, Name, Namespace, Space, Token};
use rustix::process::Pid;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::{output, system};

/// The processes that were left behind, by the tokens of the holders.
pub(crate) type Leftovers = HashMap<Token, String>;

/// Says so while it lives, and for at most two TTLs longer.
#[derive(Debug)]
pub(super) struct Notice(AbortHandle);

impl Notice {
    /// Stores the processes of the group, now and once in a TTL. Needs a runtime.
    pub(super) fn begin(locks: LockManager, lease: HeldLock, group: Pid) -> Self {
        let notice = async move {
            loop {
                let processes = system::processes_of(group).unwrap_or_default().join(", ");
                store(&locks, &lease, processes).await;
                sleep(lease.granted_ttl()).await;
            }
        };
        Self(tokio::spawn(notice).abort_handle())
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One that cannot be stored, as on a quorum, costs the notice only.
async fn store(locks: &LockManager, lease: &HeldLock, processes: String) {
    let (space, name) = (lease.mode().space(), lease.name());
    let at = lease.token().ok().and_then(|token| key(locks, space, name, token));
    let (Some(at), Some(registers)) = (at, locks.driver().registers()) else {
        return;
    };
    let mut write = Write::of(Some(processes.into_bytes()));
    write.ttl = Some(lease.granted_ttl() * 2);
    if let Err(error) = registers.write(&at, &write).await {
        output::detail(format!("`lockkit show` does not name what was left behind: {error}"));
    }
}

/// What holders of this lock say. One request for each holder that runs a command; no answer is no
/// word.
pub(crate) async fn of(locks: &LockManager, state: &LockState) -> Leftovers {
    let Some(registers) = locks.driver().registers() else {
        return Leftovers::new();
    };
    let keys: Vec<_> = state
        .holders()
        .filter(|holder| runs_a_command(holder))
        .filter_map(|it| Some((it.token, key(locks, state.space(), state.name(), it.token)?)))
        .collect();
    let read = |(token, at)| async move {
        let entry = registers.load(&at).await.ok()??;
        Some((token, String::from_utf8_lossy(&entry.value).into_owned()))
    };
    stream::iter(keys).map(read).buffer_unordered(16).filter_map(std::future::ready).collect().await
}

/// Holders of `run` and `elect` are called `user:command`.
fn runs_a_command(holder: &ClaimState) -> bool {
    holder.identity.program.contains(':')
}

fn key(locks: &LockManager, space: Space, name: &Name, token: Token) -> Option<RegisterKey> {
    let namespace = Namespace::new(locks.settings().namespace_str()).ok()?;
    let name = Name::new(format!("lockkit.leftovers/{space}/{token}/{name}")).ok()?;
    Some(RegisterKey { namespace, name })
}
