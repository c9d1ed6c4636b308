//! Long lists.

use std::sync::Arc;

use lockkit_core::Namespace;
use lockkit_core::driver::{LockDriver, Patience};
use lockkit_core::state::ListRequest;
use lockkit_etcd::etcd_client::PutOptions;
use lockkit_lab::{Kind, Server};

use crate::stage::{client, driver, exclusive, keys};

/// More bytes than the client library takes in one answer, by itself.
#[tokio::test]
async fn a_line_of_thousands_with_long_notes_is_shown() {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let note: Arc<str> = "n".repeat(1_000).into();
    const WAITERS: usize = 4_500;
    let waiter = Arc::new(exclusive("a", 600, 600).with_note(Some(note)));
    ours.acquire(&waiter, Patience::Wait).await.unwrap();
    // The others are copies of this one, each with a place of its own.
    let first = keys(&server, "a").await.remove(0);
    let client = client(&server).await;
    for some in (1..WAITERS).collect::<Vec<_>>().chunks(100) {
        let put = some.iter().map(|n| {
            let (mut client, mut key) = (client.clone(), first.key().to_vec());
            key.extend(n.to_string().bytes());
            let same = PutOptions::new().with_lease(first.lease());
            let value = first.value();
            async move { client.put(key, value, Some(same)).await.unwrap() }
        });
        futures_util::future::join_all(put).await;
    }
    let state = ours.inspect(&waiter.key).await.unwrap();
    assert_eq!(state.line.len(), WAITERS);
    let (namespace, prefix) = (Namespace::default(), String::new());
    let request = ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
    let page = ours.list(&request).await.unwrap();
    assert_eq!(page.states.iter().map(|state| state.line.len()).collect::<Vec<_>>(), [WAITERS]);
    assert!(page.next.is_none());
}
