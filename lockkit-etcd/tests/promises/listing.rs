//! Long lists.

use std::sync::Arc;

use lockkit_conformance::lab::{Kind, Server};
use lockkit_core::Namespace;
use lockkit_core::driver::{LockDriver, Patience};
use lockkit_core::state::ListRequest;

use crate::stage::{claim, driver, exclusive};

/// More bytes than the client library takes in one answer, by itself.
#[tokio::test]
async fn a_line_of_thousands_with_long_notes_is_shown() {
    let server = Server::start(Kind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let note: Arc<str> = "n".repeat(1_000).into();
    const WAITERS: usize = 4_500;
    let one = claim("a", 600, 600);
    for some in (0..WAITERS).collect::<Vec<_>>().chunks(100) {
        let put_in = some.iter().map(|_| {
            let (ours, note) = (ours.clone(), note.clone());
            async move {
                let waiter = Arc::new(exclusive("a", 600, 600).with_note(Some(note)));
                ours.acquire(&waiter, Patience::Wait).await.unwrap();
            }
        });
        futures_util::future::join_all(put_in).await;
    }
    let state = ours.inspect(&one.key).await.unwrap();
    assert_eq!(state.line.len(), WAITERS);
    let (namespace, prefix) = (Namespace::default(), String::new());
    let request = ListRequest { namespace, space: None, prefix, after: None, limit: 10 };
    let page = ours.list(&request).await.unwrap();
    assert_eq!(page.states.iter().map(|state| state.line.len()).collect::<Vec<_>>(), [WAITERS]);
    assert!(page.next.is_none());
}
