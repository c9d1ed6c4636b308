//! Every way to a deadline, with an answer that comes late: a grant counts from a moment before the
//! request was sent that etcd answered, never from an arrival.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::clock::{Clock, Moment, SteadyClock};
use lockkit_core::driver::{Acquisition, Grant, LockDriver, Patience, Released, Renewal};
use lockkit_core::{Claim, Error, Lifetime, LockManager, Settings};
use lockkit_etcd::EtcdDriver;
use lockkit_lab::proxy::{Protocol, ProxyFault, When};
use lockkit_lab::{Proxy, Server, ServerKind};

use crate::stage::{
    claim, client, driver, exclusive, keys, last_holds, queue, renewed, soon, take, until,
};

/// How late an answer is. Below what the driver waits before it asks again.
const LATE: Duration = Duration::from_millis(1_800);
/// The ttl of holders: nothing ends meanwhile.
const LONG: u64 = 24;

/// A server, a driver that reaches it through a proxy, and one that reaches it directly.
struct Place {
    server: Server,
    proxy: Proxy,
    slow: Arc<EtcdDriver>,
    near: Arc<EtcdDriver>,
}

impl Place {
    async fn new() -> Self {
        let server = Server::start(ServerKind::Etcd).await.unwrap();
        let proxy = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
        let slow = driver(&server.url_at(proxy.addr())).await;
        let near = driver(&server.url()).await;
        Self { server, proxy, slow, near }
    }

    /// A claim in front of which another one has just been released.
    async fn first_in_line(&self, waiter: &Arc<Claim>) {
        let holder = claim(waiter.key.name.as_str(), LONG, LONG);
        take(&self.near, &holder).await;
        queue(&self.slow, waiter).await;
        self.near.release(&holder).await.unwrap();
    }
}

/// One way to a deadline: what goes before, and the request whose answer is late.
#[derive(Clone, Copy, Debug)]
enum Way {
    FirstAnswer,
    Try,
    RepeatedAnswer,
    /// A renewal is told that the claim's turn has come.
    Poll,
    KeepAlive,
    Downgrade,
    Resume,
    /// The claim waited in its queue, and is asked about by what it was put in with.
    FoundFirstInLine,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::FirstAnswer,
        Self::Try,
        Self::RepeatedAnswer,
        Self::Poll,
        Self::KeepAlive,
        Self::Downgrade,
        Self::Resume,
        Self::FoundFirstInLine,
    ];

    async fn prepare(self, place: &Place, one: &Arc<Claim>) {
        match self {
            Self::FirstAnswer | Self::Try => {}
            Self::RepeatedAnswer | Self::KeepAlive | Self::Downgrade => {
                take(&place.slow, one).await;
            }
            Self::Poll | Self::FoundFirstInLine => place.first_in_line(one).await,
            Self::Resume => {
                take(&place.near, one).await;
            }
        }
    }

    async fn act(self, place: &Place, one: &Arc<Claim>) -> Result<Grant, Error> {
        let driver = &place.slow;
        let (acquired, renewed) = match self {
            Self::FirstAnswer | Self::RepeatedAnswer | Self::FoundFirstInLine => {
                (Some(driver.acquire(one, Patience::Wait).await?), None)
            }
            Self::Try => (Some(driver.acquire(one, Patience::Try).await?), None),
            Self::Poll | Self::KeepAlive | Self::Resume => {
                (None, Some(renewed(driver, one).await?))
            }
            Self::Downgrade => (None, Some(driver.downgrade(one).await?)),
        };
        match (acquired.map(|acquired| acquired.result), renewed) {
            (Some(Acquisition::Granted(grant)), _) | (_, Some(Renewal::Holds(grant))) => Ok(grant),
            other => panic!("{self:?}: it holds: {other:?}"),
        }
    }

    fn claim(self, name: &str) -> Arc<Claim> {
        match self {
            Self::Resume => Arc::new(exclusive(name, LONG, LONG).with_lifetime(Lifetime::Detached)),
            _ => claim(name, LONG, LONG / 2),
        }
    }
}

#[tokio::test]
async fn whichever_answer_is_late_no_grant_says_more_than_etcd_gives() {
    let place = Place::new().await;
    for way in Way::ALL {
        let name = |n: u64| format!("{way:?}-{n}");
        let one = way.claim(&name(0));
        way.prepare(&place, &one).await;
        place.proxy.reset();
        way.act(&place, &one).await.unwrap();
        let answers = place.proxy.counts().answers;
        let mut late = 0;
        for n in 1..=answers {
            let one = way.claim(&name(n));
            way.prepare(&place, &one).await;
            let strike = place.proxy.fault(ProxyFault::Delay(LATE), When::Answer(n));
            let grant = way.act(&place, &one).await;
            let grant = grant.unwrap_or_else(|e| panic!("{way:?}, answer {n}: {e}"));
            late += u32::from(strike.has_struck());
            no_more_than_given(&place.server, &one, &grant, &format!("{way:?}, answer {n}")).await;
            place.proxy.heal().await.unwrap();
        }
        assert!(late > 0, "{way:?}: no answer was late");
    }
}

/// etcd tells whole seconds, rounded down.
async fn no_more_than_given(server: &Server, one: &Claim, grant: &Grant, what: &str) {
    let since = grant
        .start
        .moment()
        .expect("leases are shared, so the driver says from when on they count");
    let lease = keys(server, one.key.name.as_str()).await.last().expect("its key").lease();
    let left = client(server).await.lease_time_to_live(lease, None).await.unwrap().ttl();
    let end = SteadyClock.now().after(Duration::from_secs(u64::try_from(left).unwrap() + 1));
    let believed = since.after(grant.ttl - grant.margin); // by a core with the least margin
    assert!(believed <= end, "{what}: {:?} too much, {grant:?}", believed.since(end));
}

#[tokio::test]
async fn a_turn_that_a_late_message_tells_counts_from_before() {
    let place = Place::new().await;
    let (holder, waiter) = (claim("a", LONG, LONG), claim("a", LONG / 2, LONG / 2));
    take(&place.near, &holder).await;
    queue(&place.slow, &waiter).await;
    let granted = place.slow.granted(&waiter);
    let released = async {
        watched(&place).await;
        let mut late = place.proxy.fault(ProxyFault::Delay(LATE), When::Push(1));
        place.near.release(&holder).await.unwrap();
        late.struck().await;
    };
    let (grant, ()) = soon("its turn", async { tokio::join!(granted, released) }).await;
    no_more_than_given(&place.server, &waiter, &grant.unwrap(), "a watch").await;
}

/// Returns when the watches of the proxy's driver are set: then nothing more passes.
async fn watched(place: &Place) {
    let mut before = None;
    while before != Some(place.proxy.counts()) || place.proxy.counts().requests == 0 {
        before = Some(place.proxy.counts());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// A driver that reaches one server in two ways.
struct Fork {
    server: Server,
    near: Arc<EtcdDriver>,
    first: Proxy,
    second: Proxy,
    url: String,
}

impl Fork {
    async fn new() -> Self {
        let server = Server::start(ServerKind::Etcd).await.unwrap();
        let first = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
        let second = Proxy::start(server.addr(), Protocol::Grpc).await.unwrap();
        let url = format!("etcd://{},{}", first.addr(), second.addr());
        let near = driver(&server.url()).await;
        Self { server, near, first, second, url }
    }

    /// Lets a renewal move the last claim to the lease of a holder while neither the word of its
    /// turn nor the renewal's answers arrive, which are `late`; says when it was moved, at the latest.
    async fn moved_unheard(
        &self,
        name: &str,
        late: Duration,
        release: impl Future<Output = ()>,
    ) -> Moment {
        self.second.latencies(Duration::ZERO, late);
        self.first.fault(ProxyFault::BlackHole, When::Now);
        release.await;
        until("the move", || async { last_holds(&keys(&self.server, name).await) }).await;
        self.second.fault(ProxyFault::BlackHole, When::Now);
        SteadyClock.now()
    }
}

/// The move to the lease of a holder was carried out, and the word of the turn comes afterwards.
#[tokio::test]
async fn a_turn_told_after_an_unanswered_move_counts_from_before_the_move() {
    let fork = Fork::new().await;
    let ours = driver(&fork.url).await;
    let (holder, waiter) = (claim("a", LONG, LONG), claim("a", LONG, 3 * LONG));
    take(&fork.near, &holder).await;
    queue(&ours, &waiter).await;
    let waiting = tokio::spawn({
        let (ours, waiter) = (ours.clone(), waiter.clone());
        async move { ours.granted(&waiter).await }
    });
    until("a watch", || async { fork.first.counts().requests > 2 }).await;
    let renewing = tokio::spawn({
        let (ours, waiter) = (ours.clone(), waiter.clone());
        async move {
            loop {
                let _ = renewed(&ours, &waiter).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let release =
        async { assert_eq!(fork.near.release(&holder).await.unwrap(), Released::Removed) };
    let moved = fork.moved_unheard("a", Duration::from_millis(700), release).await;
    renewing.abort();
    fork.first.heal().await.unwrap();
    let grant = soon("its turn", waiting).await.unwrap().unwrap();
    let since = grant.start.moment().expect("leases are shared");
    assert!(since <= moved, "it counts from {:?} after the move", since.since(moved));
}

/// The same through `lock()`, to the end: the next holder comes when the first guard is over.
#[tokio::test]
async fn no_two_guards_are_valid_when_a_turn_is_told_after_an_unanswered_move() {
    for round in 0..3 {
        let fork = Fork::new().await;
        let name = format!("a{round}");
        let settings = Settings::default().ttl(Duration::from_secs(3));
        let settings = settings.wait_ttl(Duration::from_secs(10));
        let near = LockManager::with(fork.near.clone(), settings.clone()).unwrap();
        let held = near.mutex(&name).ttl(Duration::from_secs(LONG)).lock().await.unwrap();
        let ours = LockManager::with(driver(&fork.url).await, settings).unwrap();
        let waiting = tokio::spawn({
            let (ours, name) = (ours.clone(), name.clone());
            async move { ours.mutex(&name).lock().await }
        });
        until("a watch", || async { fork.first.counts().requests > 2 }).await;
        let release = async { held.release().await.unwrap() };
        fork.moved_unheard(&name, Duration::from_millis(250), release).await;
        fork.first.heal().await.unwrap();
        let first = soon("its turn", async {
            tokio::select! {
                guard = waiting => Some(guard.unwrap().unwrap()),
                // It may as well find that it is too late.
                () = until("its end", || async { keys(&fork.server, &name).await.is_empty() }) => None,
            }
        })
        .await;
        fork.first.fault(ProxyFault::BlackHole, When::Now);
        let next = soon("the next holder", near.mutex(&name).lock()).await.unwrap();
        if let Some(first) = &first {
            assert!(!first.is_valid(), "two guards are valid: {:?} left", first.remaining());
        }
        next.release().await.unwrap();
        drop((first, ours));
    }
}
