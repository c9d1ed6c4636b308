//! Long lists.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{LockDriver, Patience};
use lockkit_core::state::ListRequest;
use lockkit_core::{LockManager, Namespace, Settings};
use lockkit_etcd::etcd_client::{PutOptions, Txn, TxnOp};
use lockkit_lab::{Server, ServerKind};

use crate::stage::{client, driver, exclusive, keys};

/// More bytes than the client library takes in one answer, by itself.
#[tokio::test]
async fn a_line_of_thousands_with_long_notes_is_shown() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
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
    assert_eq!(state.queue.len(), WAITERS);
    let (namespace, prefix) = (Namespace::default(), String::new());
    let request = ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
    let page = ours.list(&request).await.unwrap();
    assert_eq!(page.states.iter().map(|state| state.queue.len()).collect::<Vec<_>>(), [WAITERS]);
    assert!(page.next.is_none());
}

/// More keys of others in a row than are fetched at once, where locks and namespaces stand.
#[tokio::test]
async fn keys_of_others_neither_end_a_listing_nor_keep_it_from_ending() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let shop = Settings::default().namespace("shop");
    let locks = LockManager::with(ours.clone(), shop).unwrap();
    let _held = locks.mutex("zebra").lock().await.unwrap();
    let mut client = client(&server).await;
    for place in ["lockkit/lock/!", "lockkit/lock/shop/!"] {
        for some in (0..1_200).collect::<Vec<_>>().chunks(100) {
            let puts = some.iter().map(|n| TxnOp::put(format!("{place}{n:04}"), "", None));
            client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
        }
    }
    let namespace = Namespace::new("shop").unwrap();
    let prefix = String::new();
    let request = ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
    let listing = async { (ours.list(&request).await, ours.namespaces(None, 10).await) };
    let ended = tokio::time::timeout(Duration::from_secs(20), listing).await;
    let (page, namespaces) = ended.expect("the listing ends");
    let names = page.unwrap().states.into_iter().map(|state| state.key.name.to_string());
    assert_eq!(names.collect::<Vec<_>>(), ["zebra"]);
    assert_eq!(namespaces.unwrap().items, [Namespace::new("shop").unwrap()]);
}
