//! Counterexamples that need a certain history, told step by step.

use std::sync::Arc;
use std::time::Duration;

use lockkit_compose::QuorumDriver;
use lockkit_core::driver::ClaimId;
use lockkit_core::driver::{
    Acquisition, Attempted, ClaimEnd, LockDriver, Patience, Released, Renewal, trusted_until,
};
use lockkit_core::{Claim, Margin, Mode, Namespace, Token};

use super::network::{Flaw, Link, Server};
use super::world::{SIGN, TTL, break_all, claim, claim_on, key, named, open, options, runtime};

pub(super) type Flaws = &'static [Flaw];

/// A program's own quorum of these members, to which they show these flaws.
pub(super) fn quorum(servers: &[Arc<Server>], seed: u64, flaws: Flaws) -> QuorumDriver {
    let links = servers.iter().zip(10 * seed..).map(|(s, seed)| Link::between(s, seed, 0, flaws));
    QuorumDriver::new(links.collect(), options()).unwrap()
}

pub(super) fn servers() -> Vec<Arc<Server>> {
    (0..3).map(|_| Server::new()).collect()
}

pub(super) async fn take(quorum: &QuorumDriver, claim: &Arc<Claim>) -> Token {
    match quorum.acquire(claim, Patience::Try).await {
        Ok(Attempted { result: Acquisition::Granted(grant), .. }) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

pub(super) async fn nap(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Another program uses another lock while a member is empty, and watches over that member until it
/// votes again. It raises nothing, so that no member hears of a token in this way.
async fn watch_over(servers: &[Arc<Server>], empty: usize, flaws: Flaws) {
    let other = quorum(servers, 7, flaws);
    let sign = Namespace::new(SIGN).unwrap();
    while servers[empty].driver().namespace_counter(&sign).await.unwrap() == 0 {
        let claim = claim_on(named("other"), Mode::Exclusive);
        let _ = other.acquire(&claim, Patience::Try).await;
        let _ = other.release(&claim).await;
        nap(TTL / 10).await;
    }
}

/// A lock wanders: first at members 0 and 1, then member 2 is repaired while it is held, member 0
/// loses its data, and the next holder meets 0 and 2. What remembers the token is member 2 alone.
async fn wander(flaws: Flaws) -> (Token, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, flaws);
    // Use the members unevenly, so that their counters differ.
    open(&quorum).await;
    servers[2].set_up(false);
    for _ in 0..20 {
        let other = claim(Mode::Exclusive);
        take(&quorum, &other).await;
        quorum.release(&other).await.unwrap();
    }
    let first = claim(Mode::Exclusive);
    let token = take(&quorum, &first).await;
    servers[2].set_up(true);
    let renew = async || {
        let answers = quorum.renew(std::slice::from_ref(&first)).await.unwrap();
        assert!(matches!(answers[0], Ok(Renewal::Holds(_))), "{answers:?}");
    };
    renew().await;
    nap(TTL / 10).await;
    servers[0].lose_data();
    for _ in 0..40 {
        renew().await;
        nap(TTL / 10).await;
    }
    quorum.release(&first).await.unwrap();
    servers[1].set_up(false);
    nap(TTL * 2).await;
    let next = claim(Mode::Exclusive);
    let counters: Flaws = if flaws.contains(&Flaw::NoClock) { &[Flaw::NoClock] } else { &[] };
    (token, take(&self::quorum(&servers, 1, counters), &next).await)
}

#[test]
fn a_repaired_member_that_counts_before_its_raise_forgets_the_token() {
    let (first, next) = runtime().block_on(wander(&[Flaw::NoClock]));
    assert!(next > first, "the raise alone suffices here: {next} after {first}");
    // The first two members had given as many tokens each, so a raise of these changes nothing.
    let (first, next) = runtime().block_on(wander(&[Flaw::NoClock, Flaw::RaisesNothing]));
    assert!(next <= first, "without it tokens go back: {next} after {first}");
    let (first, next) = runtime().block_on(wander(&[]));
    assert!(next > first);
}

/// One member of three still has the claim: it had ended, and whoever answers last makes that known.
#[test]
fn a_release_says_what_the_members_know_whoever_of_them_is_slow() {
    for seed in 0..100 {
        let released = runtime().block_on(async {
            let servers = servers();
            let quorum = quorum(&servers, seed, &[]);
            let claim = claim(Mode::Exclusive);
            take(&quorum, &claim).await;
            servers[1].lose_data();
            servers[2].lose_data();
            quorum.release(&claim).await.unwrap()
        });
        assert_eq!(released, Released::NoSuchLock, "seed {seed}");
    }
}

/// Two come at once while one member is down, so that each may get one of the other two. Says
/// whether either holds before a lease is over.
async fn split_vote(seed: u64, flaws: Flaws) -> bool {
    let servers = servers();
    let programs = [2 * seed, 2 * seed + 1].map(|seed| quorum(&servers, seed, flaws));
    for program in &programs {
        open(program).await;
    }
    servers[2].set_up(false);
    let waits = async |quorum: &QuorumDriver| {
        let claim = claim(Mode::Exclusive);
        match quorum.acquire(&claim, Patience::Wait).await {
            Ok(Attempted { result: Acquisition::Granted(_), .. }) => true,
            _ => quorum.granted(&claim).await.is_ok(),
        }
    };
    let either = async {
        tokio::select! {
            biased;
            got = waits(&programs[0]) => got,
            got = waits(&programs[1]) => got,
        }
    };
    tokio::time::timeout(TTL * 9 / 10, either).await.unwrap_or(false)
}

#[test]
fn a_split_vote_is_decided_soon_and_never_if_members_are_queued_at() {
    let decided = |seed, flaws: Flaws| runtime().block_on(split_vote(seed, flaws));
    assert!((0..200).all(|seed| decided(seed, &[])));
    assert!((0..200).any(|seed| !decided(seed, &[Flaw::Queues])), "each waits for the other");
}

/// A holder at members 0 and 1 gives the lock back, member 0 loses its data, and the next holder
/// meets 0 and 2: nobody there has heard of the first token.
async fn forget(flaws: Flaws, to_watchers: Flaws) -> (Token, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, flaws);
    open(&quorum).await;
    servers[2].set_up(false);
    for _ in 0..40 {
        let other = claim(Mode::Exclusive);
        take(&quorum, &other).await;
        quorum.release(&other).await.unwrap();
    }
    let first = claim(Mode::Exclusive);
    let token = take(&quorum, &first).await;
    quorum.release(&first).await.unwrap();
    servers[0].lose_data();
    servers[2].set_up(true);
    watch_over(&servers, 0, to_watchers).await;
    servers[1].set_up(false);
    let next = claim(Mode::Exclusive);
    (token, take(&quorum, &next).await)
}

#[test]
fn a_member_that_lost_its_data_and_counts_from_one_forgets_the_token() {
    let (first, next) = runtime().block_on(forget(&[], &[Flaw::RaisesNothing]));
    assert!(next > first, "{next} after {first}");
    let to_watchers = &[Flaw::NoClock, Flaw::RaisesNothing];
    let (first, next) = runtime().block_on(forget(&[Flaw::NoClock], to_watchers));
    assert!(next <= first, "without a clock tokens go back: {next} after {first}");
}

/// A claim is broken by force at member 0 between its grant there and its raise, which makes the
/// token that member 1 gave the greatest. Gives the tokens of those who got through.
async fn broken_before_the_raise(flaws: Flaws) -> (Option<Token>, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, flaws);
    open(&quorum).await;
    for _ in 0..20 {
        let (driver, other) = (servers[1].driver(), claim(Mode::Exclusive));
        driver.acquire(&other, Patience::Try).await.unwrap();
        driver.release(&other).await.unwrap();
    }
    servers[2].set_up(false);
    let first = claim(Mode::Exclusive);
    let breaking = async {
        while servers[0].driver().inspect(&key()).await.unwrap().is_free() {
            nap(Duration::from_millis(1)).await;
        }
        break_all(&servers[0]).await;
    };
    let (taken, ()) = tokio::join!(quorum.acquire(&first, Patience::Try), breaking);
    let taken = match taken {
        Ok(Attempted { result: Acquisition::Granted(grant), .. }) => Some(grant.token),
        _ => None,
    };
    servers[2].set_up(true);
    servers[1].set_up(false);
    let next = claim(Mode::Exclusive);
    (taken, take(&quorum, &next).await)
}

#[test]
fn a_raise_of_a_claim_that_is_gone_does_not_count() {
    let (first, _) = runtime().block_on(broken_before_the_raise(&[]));
    assert_eq!(first, None, "it was not there any more");
    let (first, next) = runtime().block_on(broken_before_the_raise(&[Flaw::RaisesTheDead]));
    assert!(first.is_some_and(|first| first >= next), "tokens go back: {next} after {first:?}");
}

/// A try is refused by a majority while another member grants it and its answer gets lost. Says
/// whether that member is free half a lease later.
async fn ghost(flaws: Flaws) -> bool {
    let servers = servers();
    let quorum = quorum(&servers, 0, flaws);
    open(&quorum).await;
    servers[0].set_up(false);
    take(&quorum, &claim(Mode::Exclusive)).await;
    servers[0].set_up(true);
    servers[0].set_mute(true);
    let refused = quorum.acquire(&claim(Mode::Exclusive), Patience::Try).await.unwrap().result;
    assert_eq!(refused, Acquisition::Busy);
    servers[0].set_mute(false);
    nap(TTL / 2).await;
    servers[0].driver().inspect(&key()).await.unwrap().is_free()
}

#[test]
fn what_a_member_granted_without_being_heard_is_taken_back() {
    assert!(runtime().block_on(ghost(&[])));
    assert!(!runtime().block_on(ghost(&[Flaw::KeepsGhosts])), "it stays until its lease ends");
}

/// A claim is broken by force at the members that have it, and a renewal acquires it at the third one
/// before it hears of that. Nothing of it may stay there.
#[test]
fn a_claim_that_is_broken_by_force_leaves_nothing_at_a_member_that_did_not_have_it() {
    for seed in 0..20 {
        runtime().block_on(async {
            let servers = servers();
            let quorum = quorum(&servers, seed, &[]);
            open(&quorum).await;
            servers[2].set_up(false);
            let held = claim(Mode::Exclusive);
            take(&quorum, &held).await;
            servers[2].set_up(true);
            for server in &servers[..2] {
                break_all(server).await;
            }
            let answer = quorum.renew_single(&held).await.unwrap();
            assert!(matches!(answer, Renewal::Ended(ClaimEnd::Broken(_))), "{answer:?}");
            nap(TTL / 4).await;
            for server in &servers {
                assert!(server.driver().inspect(&key()).await.unwrap().is_free(), "seed {seed}");
            }
        });
    }
}

/// A renewal may ask for more than the quorum keeps; members are asked for no more than that.
#[test]
fn a_renewal_never_makes_a_lease_longer_than_the_longest() {
    runtime().block_on(async {
        let servers = servers();
        let quorum = quorum(&servers, 0, &[]);
        let claim = claim(Mode::Exclusive);
        take(&quorum, &claim).await;
        let mut greedy = Claim::clone(&claim);
        greedy.hold_ttl = TTL * 100;
        let answers = quorum.renew(&[Arc::new(greedy)]).await.unwrap();
        assert!(matches!(answers[0], Ok(Renewal::Holds(_))), "{answers:?}");
        for server in &servers {
            let line = server.driver().inspect(&key()).await.unwrap().queue;
            assert!(line[0].expires_in <= TTL, "{:?}", line[0].expires_in);
        }
        assert!(quorum.shorten(&claim, TTL * 100).await.is_err());
    });
}

/// Every way to a lease at a quorum: at once, by renewal, after a repair.
#[test]
fn a_lease_counts_from_before_the_members_were_asked_however_late_they_answer() {
    for seed in 0..50 {
        runtime().block_on(async {
            let servers = servers();
            let quorum = quorum(&servers, seed, &[]);
            open(&quorum).await;
            let claim = claim(Mode::Exclusive);
            let asked = quorum.clock().now();
            let answer = quorum.acquire(&claim, Patience::Try).await.unwrap().result;
            let Acquisition::Granted(grant) = answer else { panic!("it is free") };
            assert!(grant.start.moment().unwrap() <= asked, "seed {seed}");
            servers[0].release_last().await;
            for _ in 0..2 {
                nap(TTL / 10).await;
                let asked = quorum.clock().now();
                match quorum.renew_single(&claim).await.unwrap() {
                    Renewal::Holds(grant) => {
                        assert!(grant.start.moment().unwrap() <= asked, "seed {seed}")
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        });
    }
}

/// One of two members has let go of a claim, and is repaired around the end of the lease: then
/// somebody else may have come and gone in between. Says whether it holds, and whether the lease of
/// the last majority was over by then.
async fn repaired_at_the_end(seed: u64) -> (bool, bool) {
    let servers = servers();
    let quorum = quorum(&servers, seed, &[]);
    open(&quorum).await;
    servers[2].set_up(false);
    let claim = claim(Mode::Exclusive);
    let answer = quorum.acquire(&claim, Patience::Try).await.unwrap().result;
    let Acquisition::Granted(grant) = answer else { panic!("it is free") };
    let until = trusted_until(grant.start.moment().unwrap(), grant.ttl, Margin::default());
    servers[1].release_last().await;
    let now = quorum.clock().now();
    nap(until.since(now) - Duration::from_millis(22)).await;
    // The third member must not keep the answer waiting.
    servers[2].set_up(true);
    let taken = Arc::new(Claim::clone(&claim).with_id(ClaimId::random()));
    servers[2].driver().acquire(&taken, Patience::Try).await.unwrap();
    let holds = matches!(quorum.renew_single(&claim).await, Ok(Renewal::Holds(_)));
    (holds, quorum.clock().now() >= until)
}

#[test]
fn a_repair_that_comes_after_the_end_of_the_lease_does_not_count() {
    let (mut in_time, mut late) = (0, 0);
    for seed in 0..200 {
        match runtime().block_on(repaired_at_the_end(seed)) {
            (true, true) => panic!("seed {seed}: it holds beyond a gap"),
            (true, false) => in_time += 1,
            (false, over) => late += usize::from(over),
        }
    }
    assert!(in_time > 0 && late > 0, "{in_time} repairs in time, and {late} that were not");
}

/// Shared holders give a lock back one after the other, each while other members are slow: so every
/// release is answered, and each leaves its claim at some members for a moment. Gives what the next
/// try is told, for exclusive use; `by` says which program releases and tries.
async fn left_behind(seed: u64, count: usize, slow: &[&[usize]], by: [usize; 4]) -> Acquisition {
    const SLOW: Duration = Duration::from_millis(150);
    let servers: Vec<_> = (0..count).map(|_| Server::new()).collect();
    // It is slow, and still answers within the limit.
    let options = options().member_limit(TTL / 4);
    let program = |seed: u64| {
        let links = servers.iter().zip(10 * seed..);
        let links = links.map(|(server, seed)| Link::between(server, seed, 0, &[]));
        QuorumDriver::new(links.collect(), options).unwrap()
    };
    let programs = [program(2 * seed), program(2 * seed + 1)];
    let mut held = Vec::new();
    for (_, by) in slow.iter().zip(by) {
        let claim = claim(Mode::Shared);
        take(&programs[by], &claim).await;
        held.push((claim, &programs[by]));
        nap(TTL / 20).await; // until it is at all members
    }
    for ((claim, program), slow) in held.into_iter().zip(slow) {
        slow.iter().for_each(|member| servers[*member].set_slow(SLOW));
        let asked = program.clock().now();
        assert_eq!(program.release(&claim).await.unwrap(), Released::Removed);
        assert!(program.clock().now().since(asked) < SLOW / 3, "nobody waits for the slow");
        slow.iter().for_each(|member| servers[*member].set_slow(Duration::ZERO));
    }
    programs[by[3]].acquire(&claim(Mode::Exclusive), Patience::Try).await.unwrap().result
}

#[test]
fn a_try_after_releases_that_were_answered_is_not_refused_for_what_they_left_behind() {
    for seed in 0..50 {
        // Members in the way: four of five, left by two programs; all three, left by the one that tries.
        for (count, slow, by) in [
            (5, [&[1, 2][..], &[3, 4]].as_slice(), [0, 1, 0, 1]),
            (3, [&[0][..], &[1], &[2]].as_slice(), [0; 4]),
        ] {
            let answer = runtime().block_on(left_behind(seed, count, slow, by));
            assert!(matches!(answer, Acquisition::Granted(_)), "{count}, seed {seed}: {answer:?}");
        }
    }
}
