//! Claims whose folder, limit or node another client changes between two requests, and a grant whose answer is late.

use std::time::Duration;

use lockkit_core::clock::{Clock, SteadyClock};
use lockkit_core::driver::{
    Acquisition, ClaimEnd, LockDriver, Patience, Released, Renewal, SetLimit,
};
use lockkit_core::{Error, Key, Mode, Space};
use lockkit_lab::proxy::{ProxyFault, When};
use lockkit_zk::zookeeper_client::Client;

use crate::{claim, key, proxied, take};

/// Long enough for a change to be made meanwhile.
const LATE: Duration = Duration::from_secs(1);

/// The reader had read the queue. Meanwhile the writer came to the same folder or, with a try, to one that
/// was made again, where versions begin again.
#[tokio::test]
async fn a_reader_does_not_come_beside_a_writer_that_came_after_it_read_the_queue() {
    let (server, proxy, driver) = proxied().await;
    let other = crate::driver(server.addr().to_string()).await;
    for patience in [Patience::Wait, Patience::Try] {
        let key = key("a");
        let (first, second) = (claim(&key, Mode::Shared), claim(&key, Mode::Shared));
        let [refused, writer] = [0; 2].map(|_| claim(&key, Mode::Exclusive));
        take(&other, &first).await;
        // The folder was seen in use, so the next try reads the queue first.
        let answer = driver.acquire(&refused, Patience::Try).await.unwrap().result;
        assert_eq!(answer, Acquisition::Busy);
        let mut late = proxy.fault(ProxyFault::Delay(LATE), When::Answer(1));
        let change = async {
            late.struck().await;
            assert_eq!(other.release(&first).await.unwrap(), Released::Removed);
            let answer = other.acquire(&writer, patience).await.unwrap().result;
            assert!(matches!(answer, Acquisition::Granted(_)), "{answer:?}");
        };
        let (answer, ()) = tokio::join!(driver.acquire(&second, Patience::Try), change);
        assert_eq!(answer.unwrap().result, Acquisition::Busy, "{patience:?}");
    }
}

/// No claim is there that would tell of the other limit.
#[tokio::test]
async fn a_claim_with_a_limit_that_others_have_changed_is_refused() {
    let (server, _proxy, driver) = proxied().await;
    let other = crate::driver(server.addr().to_string()).await;
    let pool = Key { space: Space::Semaphore, ..key("pool") };
    let [first, second] = [0; 2].map(|_| claim(&pool, Mode::Permits { permits: 5, limit: 5 }));
    assert_eq!(driver.resize(&pool, SetLimit::To(5)).await.unwrap(), 5);
    take(&driver, &first).await;
    driver.release(&first).await.unwrap();
    assert_eq!(other.resize(&pool, SetLimit::To(2)).await.unwrap(), 2);
    let answer = driver.acquire(&second, Patience::Wait).await;
    let refused = matches!(answer, Err(Error::LimitMismatch { in_use: 2, asked: 5, .. }));
    assert!(refused, "{answer:?}");
}

#[tokio::test]
async fn a_grant_whose_answer_is_late_counts_from_before() {
    let (_server, proxy, driver) = proxied().await;
    let key = key("a");
    let [warm, mine] = [0; 2].map(|_| claim(&key, Mode::Exclusive));
    take(&driver, &warm).await;
    driver.release(&warm).await.unwrap();
    let mut late = proxy.fault(ProxyFault::Delay(LATE), When::Answer(1));
    let answered = async {
        late.struck().await;
        SteadyClock.now()
    };
    let (answer, answered) = tokio::join!(driver.acquire(&mine, Patience::Wait), answered);
    let answer = answer.unwrap().result;
    let Acquisition::Granted(grant) = answer else { panic!("it is free: {answer:?}") };
    let since = grant.start.moment().expect("the session is shared");
    assert!(since <= answered, "it counts from {:?} later", since.since(answered));
}

#[tokio::test]
async fn a_holder_whose_node_was_deleted_by_hand_learns_so_by_its_next_renewal() {
    let (server, _proxy, driver) = proxied().await;
    let client = Client::connect(&server.addr().to_string()).await.unwrap();
    let key = key("a");
    let mine = claim(&key, Mode::Exclusive);
    take(&driver, &mine).await;
    let folder = format!("/lockkit/n-{}/lock/a", key.namespace);
    for node in client.list_children(&folder).await.unwrap() {
        client.delete(&format!("{folder}/{node}"), None).await.unwrap();
    }
    let renewed = driver.renew_single(&mine).await.unwrap();
    assert_eq!(renewed, Renewal::Ended(ClaimEnd::NotFound));
}
