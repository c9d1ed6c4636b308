//! The quorum as its users meet it: what a failing minority costs, breaks, and what is refused.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lockkit_compose::{QuorumDriver, QuorumMember, QuorumOptions};
use lockkit_conformance::wrap::{DriverMethod, ObservedAnswer, Tamper, Tampered};
use lockkit_core::driver::{Acquisition, BreakMode, LockDriver, Patience};
use lockkit_core::{
    BreakRecord, Claim, ClientIdentity, Error, LockManager, LossReason, MemoryDriver, Mode,
    Namespace, Settings, Space, Token,
};

const TTL: Duration = Duration::from_secs(10);

/// A program of its own on these members.
fn manager(members: &[Arc<dyn LockDriver>]) -> LockManager {
    let driver = QuorumDriver::new(members.to_vec(), QuorumOptions::default()).unwrap();
    LockManager::with(Arc::new(driver), Settings::default().ttl(TTL)).unwrap()
}

fn members(count: usize) -> Vec<Arc<dyn LockDriver>> {
    (0..count).map(|_| Arc::new(MemoryDriver::new()) as Arc<dyn LockDriver>).collect()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_it_after_the_release_and_with_a_greater_token() {
    let members = members(3);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").lock().await.unwrap();
    let first = guard.token().unwrap();
    let waiting = tokio::spawn(async move { theirs.mutex("a").lock().await });
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_valid() && !waiting.is_finished());
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token().unwrap() > first);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_went_away_leaves_nothing() {
    let members = members(3);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").lock().await.unwrap();
    let none = theirs.mutex("a").try_lock_for(Duration::from_secs(1)).await.unwrap();
    assert!(none.is_none());
    guard.release().await.unwrap();
    theirs.shutdown().await;
    for member in &members {
        let key = ours.inspect(Space::Lock, "a").await.unwrap().key;
        assert!(member.inspect(&key).await.unwrap().is_free());
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_member_votes_again_after_its_quarantine_and_the_lock_goes_on() {
    let mut all = members(3);
    let before = manager(&all);
    let guard = before.mutex("a").lock().await.unwrap();
    let first = guard.token().unwrap();
    guard.release().await.unwrap();
    all[0] = Arc::new(MemoryDriver::new());
    let after = manager(&all);
    let guard = after.mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap() > first);
    let found = after.health().await.unwrap().findings;
    assert!(
        found.iter().any(|f| f.what.contains("member 1 (memory) may have lost data")),
        "{found:?}"
    );
    tokio::time::sleep(Duration::from_secs(70)).await;
    let found = after.health().await.unwrap().findings;
    assert!(!found.iter().any(|f| f.what.contains("may have lost data")), "{found:?}");
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_that_remembers_nothing_is_granted() {
    let mut all = members(3);
    let guard = manager(&all).mutex("a").lock().await.unwrap();
    all[0] = Arc::new(MemoryDriver::new());
    all[1] = Arc::new(MemoryDriver::new());
    let after = manager(&all);
    assert!(!matches!(after.mutex("b").try_lock().await, Ok(Some(_))));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_break_reaches_the_holder_and_frees_the_lock() {
    let members = members(5);
    let (ours, theirs) = (manager(&members), manager(&members));
    let guard = ours.mutex("a").note("why").lock().await.unwrap();
    let token = guard.token().unwrap();
    let state = theirs.inspect(Space::Lock, "a").await.unwrap();
    assert_eq!(state.queue[0].token, token);
    let broken = theirs.admin().break_lock(Space::Lock, "a", token, BreakMode::Forced, None).await;
    assert!(broken.unwrap());
    let next = theirs.mutex("a").try_lock().await.unwrap().expect("it is free");
    assert!(next.token().unwrap() > token);
    assert!(matches!(guard.lost().await, LossReason::Broken(_)));
}

#[tokio::test(start_paused = true)]
async fn what_a_quorum_cannot_do_is_refused() {
    let two = QuorumDriver::new(members(2), QuorumOptions::default());
    assert!(matches!(two, Err(Error::Config(_))));
    let locks = manager(&members(3));
    let permits = locks.semaphore("s", 2).acquire().await;
    assert!(matches!(permits, Err(Error::Unsupported { .. })));
    let long = locks.mutex("a").ttl(Duration::from_secs(61)).try_lock().await;
    assert!(matches!(long, Err(Error::Config(_))));
}

/// A member that is away until it is let in.
fn away(driver: &Arc<dyn LockDriver>, kind: &str) -> (QuorumMember, Arc<AtomicBool>) {
    let (driver, here) = (driver.clone(), Arc::new(AtomicBool::new(false)));
    let seen = here.clone();
    let member = QuorumMember::new(kind, move || {
        let answer = match seen.load(Ordering::SeqCst) {
            true => Ok(driver.clone()),
            false => Err(Error::retryable("memory", "it is away")),
        };
        async move { answer }
    });
    (member, here)
}

fn present(driver: &Arc<dyn LockDriver>) -> QuorumMember {
    let driver = driver.clone();
    QuorumMember::new("memory", move || {
        let driver = driver.clone();
        async move { Ok(driver) }
    })
}

#[tokio::test(start_paused = true)]
async fn a_program_begins_while_a_member_is_away_and_takes_it_in_later() {
    let all = members(3);
    drop(manager(&all).mutex("a").lock().await.unwrap());
    let (late, here) = away(&all[2], "memory");
    let some = vec![present(&all[0]), present(&all[1]), late];
    let quorum = QuorumDriver::connect(some, QuorumOptions::default()).await.unwrap();
    let locks = LockManager::with(Arc::new(quorum), Settings::default().ttl(TTL)).unwrap();
    let guard = locks.mutex("b").lock().await.unwrap();
    let key = locks.inspect(Space::Lock, "b").await.unwrap().key;
    assert!(all[2].inspect(&key).await.unwrap().is_free());
    here.store(true, Ordering::SeqCst);
    while all[2].inspect(&key).await.unwrap().is_free() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(guard.is_valid());
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_program_does_not_begin_without_a_majority_or_with_a_member_that_refuses() {
    let all = members(3);
    let connect = |members| QuorumDriver::connect(members, QuorumOptions::default());
    let two_away = vec![present(&all[0]), away(&all[1], "memory").0, away(&all[2], "memory").0];
    let error = connect(two_away).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let alone = vec![present(&all[0]), present(&all[1]), away(&all[2], "of its own kind").0];
    let error = connect(alone).await.unwrap_err();
    assert!(error.to_string().contains("of its own kind"), "{error}");
    let refuses = QuorumMember::new("memory", || async { Err(Error::config("a wrong password")) });
    let error = connect(vec![present(&all[0]), present(&all[1]), refuses]).await.unwrap_err();
    assert!(error.to_string().contains("a wrong password"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_does_not_answer_is_named() {
    let all = members(3);
    let silent = || QuorumMember::new("memory", std::future::pending);
    let members = vec![present(&all[0]), silent().named("redis://slow"), silent()];
    let connected = QuorumDriver::connect(members, QuorumOptions::default()).await;
    let said = connected.unwrap_err().to_string();
    for name in ["redis://slow: ", "member 3 (memory): "] {
        assert!(said.contains(&format!("{name}the backend did not answer in time")), "{said}");
    }
    let waits = QuorumMember::new("memory", std::future::pending).named("redis://late");
    let two = vec![present(&all[0]), present(&all[1]), waits];
    let quorum = QuorumDriver::connect(two, QuorumOptions::default()).await.unwrap();
    let said =
        quorum.raise_namespace_counter(&Namespace::default(), 1).await.unwrap_err().to_string();
    assert!(said.contains("; redis://late: it could not be reached yet"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_new_quorum_begins_once_all_its_members_are_there() {
    let all = members(3);
    let (late, here) = away(&all[2], "memory");
    let some = vec![present(&all[0]), present(&all[1]), late];
    let quorum = QuorumDriver::connect(some, QuorumOptions::default()).await.unwrap();
    let locks = LockManager::with(Arc::new(quorum), Settings::default().ttl(TTL)).unwrap();
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("all its members"), "{error}");
    let waiting = tokio::spawn(async move { locks.mutex("a").lock().await });
    tokio::time::sleep(TTL).await;
    assert!(!waiting.is_finished());
    here.store(true, Ordering::SeqCst);
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn what_a_slow_member_still_has_of_an_earlier_claim_is_not_said_of_the_next() {
    let all = members(3);
    let quorum = QuorumDriver::new(all.clone(), QuorumOptions::default()).unwrap();
    let key = manager(&all).inspect(Space::Lock, "a").await.unwrap().key;
    let identity = Arc::new(ClientIdentity::of_this_process());
    let acquire = async || {
        let claim = Claim::new(key.clone(), Mode::Exclusive, TTL, TTL, identity.clone());
        let claim = Arc::new(claim);
        match quorum.acquire(&claim, Patience::Try).await.unwrap().result {
            Acquisition::Granted(grant) => (claim, grant.token),
            other => panic!("it is free: {other:?}"),
        }
    };
    let (_first, before) = acquire().await;
    let record = BreakRecord::from_parts((*identity).clone(), 0, None, false);
    assert!(quorum.break_claim(&key, before, BreakMode::Graceful, &record).await.unwrap());
    assert!(quorum.inspect(&key).await.unwrap().queue[0].broken);
    // As when it was released, and the third has not heard of that yet.
    for member in &all[..2] {
        assert!(member.break_claim(&key, before, BreakMode::Forced, &record).await.unwrap());
    }
    let (_second, token) = acquire().await;
    assert!(token > before);
    let state = quorum.inspect(&key).await.unwrap();
    assert_eq!((state.queue.len(), state.queue[0].token, state.queue[0].broken), (1, token, false));
    let broken = quorum.break_claim(&key, before, BreakMode::Forced, &record).await.unwrap();
    assert!(!broken, "the claim of that token is gone");
    assert!(quorum.inspect(&key).await.unwrap().queue[0].holds(), "the next one is not broken");
}

/// A member that does not carry out one operation while it is held up.
#[derive(Debug)]
struct Slow(DriverMethod, AtomicBool);

#[async_trait]
impl Tamper for Slow {
    async fn before(&self, verb: DriverMethod) -> Result<(), Error> {
        while verb == self.0 && self.1.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

/// One member was late to grant the claim, with a greater token than the others; another one is late to
/// downgrade it.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_a_member_has_not_carried_out_yet_hides_no_claim() {
    let mut all = members(3);
    let slow = Arc::new(Slow(DriverMethod::Downgrade, AtomicBool::new(true)));
    all[0] = Arc::new(Tampered::new(all[0].clone(), slow.clone()));
    let (late, here) = away(&all[2], "memory");
    let first = manager(&all);
    first.mutex("a").lock().await.unwrap().release().await.unwrap();
    let key = first.inspect(Space::Lock, "a").await.unwrap().key;
    let identity = Arc::new(ClientIdentity::of_this_process());
    let ahead = Arc::new(Claim::new(key.clone(), Mode::Exclusive, TTL, TTL, identity));
    all[2].acquire(&ahead, Patience::Try).await.unwrap();
    all[2].raise(&ahead, Token::new(1_000_000).unwrap()).await.unwrap();
    all[2].release(&ahead).await.unwrap();
    let some = vec![present(&all[0]), present(&all[1]), late];
    let quorum = QuorumDriver::connect(some, QuorumOptions::default()).await.unwrap();
    let locks = LockManager::with(Arc::new(quorum), Settings::default().ttl(TTL)).unwrap();
    let guard = locks.rwlock("a").write().await.unwrap();
    here.store(true, Ordering::SeqCst);
    while all[2].inspect(&key).await.unwrap().is_free() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let shown = async || locks.inspect(Space::Lock, "a").await.unwrap().queue;
    let token = guard.token().unwrap();
    let third = all[2].inspect(&key).await.unwrap().queue[0].token;
    assert!(third > token, "{third} is not greater than {token}");
    let guard = guard.downgrade().await.unwrap();
    let queue = shown().await;
    assert_eq!(queue.len(), 1, "{queue:?}");
    assert_eq!((queue[0].mode, queue[0].token), (Mode::Shared, token));
    slow.1.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let queue = shown().await;
    assert_eq!((queue.len(), queue[0].mode, queue[0].token), (1, Mode::Shared, token));
    guard.release().await.unwrap();
}

/// Programs that live for a moment each: what one has begun, the next goes on with.
#[tokio::test(start_paused = true)]
async fn short_programs_alone_let_an_empty_member_vote_again() {
    let mut all = members(3);
    drop(manager(&all).mutex("a").lock().await.unwrap());
    all[0] = Arc::new(MemoryDriver::new());
    let rests = async || {
        let found = manager(&all).health().await.unwrap().findings;
        found.iter().any(|f| f.what.contains("member 1 (memory) may have lost data"))
    };
    let mut token = 0;
    let mut program = async || {
        let locks = manager(&all);
        let guard = locks.mutex("a").lock().await.unwrap();
        let next = guard.token().unwrap().get();
        assert!(next > token, "{next} after {token}");
        token = next;
        guard.release().await.unwrap();
        locks.shutdown().await;
        next
    };
    let begun = tokio::time::Instant::now();
    let mut before = program().await;
    assert!(rests().await);
    while rests().await {
        assert!(begun.elapsed() < Duration::from_secs(75), "it rests for the longest ttl");
        tokio::time::sleep(Duration::from_millis(500)).await;
        before = program().await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(60), "it rests for no less");
    // It counts again, so another one may fail.
    all[1] = Arc::new(MemoryDriver::new());
    let locks = manager(&all);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(guard.token().unwrap().get() > before);
}

/// How often members granted a claim, and how often they refused one.
#[derive(Debug, Default)]
struct TryCounts {
    granted: AtomicU64,
    busy: AtomicU64,
}

impl Tamper for TryCounts {
    fn observed(&self, answer: ObservedAnswer<'_>, _: u64) {
        match answer {
            ObservedAnswer::Acquired(_, Acquisition::Granted(_)) => &self.granted,
            ObservedAnswer::Acquired(_, Acquisition::Busy) => &self.busy,
            _ => return,
        }
        .fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_process_hand_a_lock_over_in_their_order_and_in_one_round_each() {
    const TASKS: u64 = 64;
    const ROUNDS: u64 = 3;
    let counts = Arc::new(TryCounts::default());
    let counted = |member| Arc::new(Tampered::new(member, counts.clone())) as Arc<dyn LockDriver>;
    let all: Vec<_> = members(3).into_iter().map(counted).collect();
    let locks = manager(&all);
    let guard = locks.mutex("a").lock().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (mutex, order) = (locks.mutex("a"), order.clone());
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let guard = mutex.lock().await.unwrap();
                order.lock().unwrap().push(task);
                guard.release().await.unwrap();
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await; // until it waits
    }
    assert_eq!(counts.granted.swap(0, Ordering::SeqCst), 3, "the others only wait");
    assert!(counts.busy.swap(0, Ordering::SeqCst) <= 3, "the first of them tried");
    guard.release().await.unwrap();
    while tasks.join_next().await.is_some() {}
    let order = order.lock().unwrap();
    let expected: Vec<_> = (0..TASKS).cycle().take(order.len()).collect();
    assert_eq!(*order, expected);
    assert_eq!(counts.granted.load(Ordering::SeqCst), 3 * TASKS * ROUNDS, "a try at each member");
    assert_eq!(counts.busy.load(Ordering::SeqCst), 0, "no try is refused");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_two_processes_hand_a_lock_over_without_a_pause() {
    const ROUNDS: u32 = 50;
    let members = members(3);
    let mut tasks = tokio::task::JoinSet::new();
    for locks in [manager(&members), manager(&members)] {
        for _ in 0..4 {
            let mutex = locks.mutex("a");
            tasks.spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = mutex.lock().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    guard.release().await.unwrap();
                }
            });
        }
    }
    let begun = tokio::time::Instant::now();
    while tasks.join_next().await.is_some() {}
    let (took, held) = (begun.elapsed(), Duration::from_millis(8 * u64::from(ROUNDS)));
    assert!(took < 2 * held, "the clock moves on only where all of them pause: {took:?}");
}

#[test]
fn a_claim_whose_step_ended_with_its_runtime_is_granted_in_another_one() {
    let slow = Arc::new(Slow(DriverMethod::Acquire, AtomicBool::new(false)));
    let slowed = |member| Arc::new(Tampered::new(member, slow.clone())) as Arc<dyn LockDriver>;
    let all: Vec<_> = members(3).into_iter().map(slowed).collect();
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().build().expect("it starts");
    let quorum = QuorumDriver::new(all.clone(), QuorumOptions::default()).unwrap();
    let first = runtime();
    let claim = first.block_on(async {
        let key = manager(&all).inspect(Space::Lock, "a").await.unwrap().key;
        let identity = Arc::new(ClientIdentity::of_this_process());
        let claim = Arc::new(Claim::new(key, Mode::Exclusive, TTL, TTL, identity));
        slow.1.store(true, Ordering::SeqCst);
        let acquiring = quorum.acquire(&claim, Patience::Wait);
        let answer = tokio::time::timeout(Duration::from_millis(20), acquiring).await;
        assert!(answer.is_err(), "no member answers");
        claim
    });
    drop(first);
    slow.1.store(false, Ordering::SeqCst);
    let waiting = async { tokio::time::timeout(TTL, quorum.granted(&claim)).await };
    let grant = runtime().block_on(waiting);
    assert!(matches!(grant, Ok(Ok(_))), "{grant:?}");
}
