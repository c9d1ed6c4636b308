//! What the conditions of transactions keep apart: a claim and another state of the same key. Here
//! the key is deleted and put again by hand, as by a copy of etcd's data that was brought back.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::driver::{Acquisition, BreakMode, LockDriver, Patience, Released, Renewal};
use lockkit_core::{BreakRecord, Claim, ClientIdentity, Mode};
use lockkit_etcd::EtcdDriver;
use lockkit_etcd::etcd_client::{KeyValue, PutOptions};
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

use crate::stage::{claim, client, driver, exclusive, keys, queue, renewed, take, until};

/// Long enough for a change to be made meanwhile.
const LATE: Duration = Duration::from_secs(2);

/// Deletes a key, and puts it again as it was.
async fn make_anew(server: &Server, kv: &KeyValue) {
    let mut client = client(server).await;
    client.delete(kv.key(), None).await.unwrap();
    let same = PutOptions::new().with_lease(kv.lease());
    client.put(kv.key(), kv.value(), Some(same)).await.unwrap();
}

async fn key_of(server: &Server, name: &str, at: usize) -> KeyValue {
    keys(server, name).await.remove(at)
}

#[tokio::test]
async fn a_claim_that_is_in_line_is_not_put_in_again() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (holder, waiter) = (claim("a", 60, 30), claim("a", 60, 30));
    take(&ours, &holder).await;
    queue(&ours, &waiter).await;
    let before = keys(&server, "a").await;
    for _ in 0..3 {
        take(&ours, &holder).await;
        queue(&ours, &waiter).await;
    }
    let written = |kvs: &[KeyValue]| -> Vec<_> {
        kvs.iter().map(|kv| (kv.create_revision(), kv.mod_revision(), kv.lease())).collect()
    };
    assert_eq!(written(&keys(&server, "a").await), written(&before));
}

#[tokio::test]
async fn a_release_takes_out_what_was_put_in_and_nothing_that_came_after() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (holder, waiter) = (claim("a", 60, 30), claim("a", 60, 30));
    take(&ours, &holder).await;
    queue(&ours, &waiter).await;
    for one in [&waiter, &holder] {
        let at = usize::from(Arc::ptr_eq(one, &waiter));
        make_anew(&server, &key_of(&server, "a", at).await).await;
    }
    for one in [&waiter, &holder, &waiter, &holder] {
        assert_eq!(ours.release(one).await.unwrap(), Released::NotFound);
    }
    assert_eq!(keys(&server, "a").await.len(), 2);
}

#[tokio::test]
async fn what_is_swept_is_what_was_forgotten_and_nothing_that_came_after() {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let ours = driver(&server.url()).await;
    let (other, forgotten, anew) = (claim("a", 3, 3), claim("b", 3, 3), claim("c", 3, 3));
    // The one that is made again is swept no later than the other one.
    for one in [&other, &anew, &forgotten] {
        take(&ours, one).await;
    }
    make_anew(&server, &key_of(&server, "c", 0).await).await;
    until("the sweep", || async {
        assert!(matches!(renewed(&ours, &other).await, Ok(Renewal::Holds(_))));
        keys(&server, "b").await.is_empty()
    })
    .await;
    ours.health().await.unwrap();
    assert_eq!(keys(&server, "c").await.len(), 1);
}

/// A driver whose requests can be held up, with all that it needs for a break.
async fn slow() -> (Server, Proxy, Arc<EtcdDriver>) {
    let server = Server::start(ServerKind::Etcd).await.unwrap();
    let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
    let slow = driver(&server.url_at(proxy.addr())).await;
    let warm = claim("warm", 60, 60);
    let token = take(&slow, &warm).await.token;
    assert!(slow.break_claim(&warm.key, token, BreakMode::Forced, &record()).await.unwrap());
    (server, proxy, slow)
}

fn record() -> BreakRecord {
    let by = ClientIdentity::of_this_process();
    BreakRecord::from_parts(by, 1, None, true)
}

/// Has the key of a claim made again while this request of the driver's is held up.
async fn meanwhile<T>(
    (server, proxy): (&Server, &Proxy),
    (name, at): (&str, usize),
    request: u64,
    acts: impl Future<Output = T>,
) -> T {
    let kv = key_of(server, name, at).await;
    let mut late = proxy.fault(ProxyFault::Delay(LATE), When::Request(request));
    let change = async {
        late.struck().await;
        make_anew(server, &kv).await;
    };
    tokio::join!(acts, change).0
}

#[tokio::test]
async fn a_forced_break_takes_out_the_claim_with_the_token_and_nothing_that_came_after() {
    let (server, proxy, slow) = slow().await;
    let one = claim("a", 60, 60);
    let token = take(&slow, &one).await.token;
    let by_force = record();
    let breaks = slow.break_claim(&one.key, token, BreakMode::Forced, &by_force);
    let broken = meanwhile((&server, &proxy), ("a", 0), 2, breaks).await;
    assert!(!broken.unwrap(), "the claim with this token is gone");
    assert_eq!(keys(&server, "a").await.len(), 1);
}

#[tokio::test]
async fn a_try_takes_its_own_claim_out_of_the_line_and_nothing_that_came_after() {
    let (server, proxy, slow) = slow().await;
    let (holder, waiter): (_, Arc<Claim>) = (claim("a", 60, 60), claim("a", 60, 60));
    take(&slow, &holder).await;
    queue(&slow, &waiter).await;
    let tries = slow.acquire(&waiter, Patience::Try);
    let answer = meanwhile((&server, &proxy), ("a", 1), 3, tries).await.unwrap();
    assert_eq!(answer.result, Acquisition::Busy);
    assert_eq!(keys(&server, "a").await.len(), 2);
}

/// What a try was shown is past when it would come beside it.
#[tokio::test]
async fn a_reader_does_not_come_beside_a_writer_that_came_while_it_tried() {
    let (server, proxy, slow) = slow().await;
    let near = driver(&server.url()).await;
    let reader = || Arc::new(exclusive("a", 60, 60).with_mode(Mode::Shared));
    let (first, second, writer) = (reader(), reader(), claim("a", 60, 60));
    take(&near, &first).await;
    let mut late = proxy.fault(ProxyFault::Delay(LATE), When::Answer(1));
    let change = async {
        late.struck().await;
        assert_eq!(near.release(&first).await.unwrap(), Released::Removed);
        take(&near, &writer).await;
    };
    let (answer, ()) = tokio::join!(slow.acquire(&second, Patience::Try), change);
    assert_eq!(answer.unwrap().result, Acquisition::Busy);
    assert_eq!(keys(&server, "a").await.len(), 1);
}
