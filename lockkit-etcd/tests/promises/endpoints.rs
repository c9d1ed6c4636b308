//! Members that stand still.

use std::time::Duration;

use lockkit_core::{LockManager, Settings};
use lockkit_lab::{Group, Layout};

use crate::stage::driver;

/// A member that is no leader stands still, and is the one in use: locks with the least ttls
/// survive it, from whatever moment on.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_short_ttls_survive_a_member_that_stands_still() {
    let cluster = Group::start(Layout::EtcdCluster).await.unwrap();
    let leader = cluster.leader().await.unwrap().addr();
    let mut members: Vec<_> = cluster.members().iter().collect();
    members.sort_by_key(|member| member.addr() == leader);
    let url = cluster.url_at(&members.iter().map(|member| member.addr()).collect::<Vec<_>>());
    for seconds in [2, 3, 4, 5, 6] {
        let ttl = Duration::from_secs(seconds);
        let settings = Settings::default().ttl(ttl).wait_ttl(ttl);
        let locks = LockManager::with(driver(&url).await, settings).unwrap();
        let guard = locks.mutex(format!("a{seconds}")).lock().await.unwrap();
        // Renewed once, over streams that are open.
        tokio::time::sleep(ttl / 2).await;
        assert!(guard.is_valid(), "{seconds} s: {:?}", guard.loss());
        members[0].freeze().await;
        tokio::time::sleep(ttl * 2).await;
        let loss = guard.loss();
        members[0].thaw();
        assert_eq!(loss, None, "a ttl of {seconds} s");
        guard.release().await.unwrap();
    }
}
