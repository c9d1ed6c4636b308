//! The rights that the driver needs in a folder: create, delete, read, write. Each of them is
//! withdrawn, before and while a lock is held: what is refused says so, and nothing is half done.

use std::time::Duration;

use lockkit_core::{Error, LockManager};
use lockkit_lab::{Server, ServerKind};
use lockkit_zk::zookeeper_client::{Acl, AuthId, Client, Permission};

use crate::stage::{children, client, manager, soon, until};

const TTL: Duration = Duration::from_secs(6);
const FOLDER: &str = "/lockkit/n-/lock/a";
const NAMES: &str = "the rights create, delete, read and write";
const ALL: [Permission; 4] =
    [Permission::CREATE, Permission::DELETE, Permission::READ, Permission::WRITE];

struct Place {
    server: Server,
    admin: Client,
}

impl Place {
    /// With the folder of a lock.
    async fn new() -> Self {
        let server = Server::start(ServerKind::ZooKeeper).await.unwrap();
        let admin = client(&server).await;
        let locks = manager(server.addr(), TTL).await;
        locks.mutex("a").lock().await.unwrap().release().await.unwrap();
        Self { server, admin }
    }

    async fn manager(&self) -> LockManager {
        manager(self.server.addr(), TTL).await
    }

    /// From now on all may do all in the folder but for this.
    async fn withdraw(&self, missing: Permission) {
        let others = ALL.into_iter().filter(|right| *right != missing);
        let rights = others.fold(Permission::ADMIN, |all, right| all | right);
        self.set(rights).await;
    }

    async fn give_back(&self) {
        self.set(Permission::ALL).await;
    }

    async fn set(&self, rights: Permission) {
        let acl = [Acl::new(rights, AuthId::anyone())];
        self.admin.set_acl(FOLDER, &acl, None).await.unwrap();
    }

    /// The claims in the folder, which the administrator cannot list, either, where no client can.
    async fn claims(&self) -> usize {
        let stat = self.admin.check_stat(FOLDER).await.unwrap().expect("it is there");
        usize::try_from(stat.num_children).unwrap()
    }
}

fn refused<T: std::fmt::Debug>(what: &str, missing: Permission, answer: Result<T, Error>) {
    let error = answer.expect_err(what);
    assert!(!error.is_retryable(), "{what} without {missing:?}: {error}");
    assert!(error.to_string().contains(NAMES), "{what} without {missing:?}: {error}");
}

#[tokio::test]
async fn without_a_right_a_claim_is_refused_and_not_left_in_line() {
    let place = Place::new().await;
    let (ours, theirs) = (place.manager().await, place.manager().await);
    for missing in ALL {
        // Where no client is, nothing is read; and nothing is deleted before the release. (A try makes an
        // empty folder again, which takes rights to the folder above.)
        if ![Permission::READ, Permission::DELETE].contains(&missing) {
            place.withdraw(missing).await;
            refused("a lock", missing, ours.mutex("a").lock().await);
            assert_eq!(place.claims().await, 0, "without {missing:?}");
            place.give_back().await;
        }
        let held = theirs.mutex("a").lock().await.unwrap();
        place.withdraw(missing).await;
        if missing == Permission::READ {
            refused("a try", missing, ours.mutex("a").try_lock().await);
        }
        if missing != Permission::DELETE {
            refused("a place in line", missing, ours.mutex("a").lock().await);
        }
        assert_eq!(place.claims().await, 1, "without {missing:?}");
        place.give_back().await;
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_from_a_holder_costs_no_lock_before_its_time() {
    let place = Place::new().await;
    let (ours, theirs) = (place.manager().await, place.manager().await);
    for missing in ALL {
        let guard = soon("the lock", ours.mutex("a").lock()).await.unwrap();
        let token = guard.token().unwrap();
        let waiting = tokio::spawn({
            let lock = theirs.mutex("a");
            async move { lock.lock().await.unwrap() }
        });
        until("a waiter", || async { place.claims().await == 2 }).await;
        place.withdraw(missing).await;
        assert!(guard.verify().await.is_ok(), "without {missing:?}");
        assert!(!waiting.is_finished(), "without {missing:?}");
        match missing {
            // Its claim stays, until it may be deleted.
            Permission::DELETE => refused("a release", missing, guard.release().await),
            _ => guard.release().await.unwrap(),
        }
        place.give_back().await;
        let next = soon("the next holder", waiting).await.unwrap();
        assert!(token < next.token().unwrap());
        next.release().await.unwrap();
        until("an empty line", || async { place.claims().await == 0 }).await;
    }
    assert!(children(&place.admin, FOLDER).await.is_empty());
}
