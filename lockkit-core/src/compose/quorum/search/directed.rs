//! Counterexamples that need a certain history, told step by step.

use std::sync::Arc;
use std::time::Duration;

use super::network::{Link, Server};
use super::world::{TTL, break_all, claim, key, options, runtime};
use crate::compose::quorum::QuorumDriver;
use crate::compose::quorum::guards::Guards;
use crate::deadline::{Margin, trusted_until};
use crate::driver::{Acquisition, Answered, LockDriver, Patience, Released, Renewal};
use crate::{Claim, ClaimId, Key, Mode, Name, Namespace, Space, Token};

fn quorum(servers: &[Arc<Server>], seed: u64, guards: Guards) -> QuorumDriver {
    let links = servers.iter().zip(10 * seed..).map(|(s, seed)| Link::between(s, seed, 0));
    QuorumDriver::guarded(links.collect(), options(), guards).unwrap()
}

fn servers() -> Vec<Arc<Server>> {
    (0..3).map(|_| Server::new()).collect()
}

async fn take(quorum: &QuorumDriver, claim: &Arc<Claim>) -> Token {
    match quorum.acquire(claim, Patience::Try).await {
        Ok(Answered { answer: Acquisition::Granted(grant), .. }) => grant.token,
        other => panic!("it is free: {other:?}"),
    }
}

async fn nap(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A lock wanders: first at members 0 and 1, then member 2 is repaired while it is held, member 0
/// loses its data, and the next holder meets 0 and 2. What remembers the token is member 2 alone.
async fn wander(guards: Guards) -> (Token, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, guards);
    // Use the members unevenly, so that their counters differ.
    quorum.shared.open().await.unwrap();
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
    (token, take(&quorum, &next).await)
}

#[test]
fn a_repaired_member_that_counts_before_its_raise_forgets_the_token() {
    let without_epochs = Guards { epochs: false, ..Guards::ALL };
    let (first, next) = runtime().block_on(wander(without_epochs));
    assert!(next > first, "the raise alone suffices here: {next} after {first}");
    let unguarded = Guards { repair_raises: false, ..without_epochs };
    let (first, next) = runtime().block_on(wander(unguarded));
    assert!(next <= first, "without it tokens go back: {next} after {first}");
    let (first, next) = runtime().block_on(wander(Guards::ALL));
    assert!(next > first);
}

/// One member of three still has the claim: it had ended, and whoever answers last makes that known.
#[test]
fn a_release_says_what_the_members_know_whoever_of_them_is_slow() {
    for seed in 0..100 {
        let released = runtime().block_on(async {
            let servers = servers();
            let quorum = quorum(&servers, seed, Guards::ALL);
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
/// whether either holds within half a lease.
async fn split_vote(seed: u64, guards: Guards) -> bool {
    let servers = servers();
    quorum(&servers, 0, guards).shared.open().await.unwrap();
    servers[2].set_up(false);
    let waits = async |seed: u64| {
        let quorum = quorum(&servers, seed, guards);
        let claim = claim(Mode::Exclusive);
        match quorum.acquire(&claim, Patience::Wait).await {
            Ok(Answered { answer: Acquisition::Granted(_), .. }) => true,
            _ => quorum.granted(&claim).await.is_ok(),
        }
    };
    let either = async {
        tokio::select! {
            biased;
            got = waits(2 * seed) => got,
            got = waits(2 * seed + 1) => got,
        }
    };
    tokio::time::timeout(TTL / 2, either).await.unwrap_or(false)
}

#[test]
fn a_split_vote_is_decided_soon_and_never_if_members_are_queued_at() {
    let decided = |seed, guards| runtime().block_on(split_vote(seed, guards));
    assert!((0..200).all(|seed| decided(seed, Guards::ALL)));
    let queueing = Guards { never_queue: false, ..Guards::ALL };
    assert!((0..200).any(|seed| !decided(seed, queueing)), "each waits for the other");
}

/// A holder at members 0 and 1 gives the lock back, member 0 loses its data, and the next holder
/// meets 0 and 2: nobody there has heard of the first token.
async fn forget(guards: Guards) -> (Token, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, guards);
    quorum.shared.open().await.unwrap();
    servers[2].set_up(false);
    for _ in 0..20 {
        let other = claim(Mode::Exclusive);
        take(&quorum, &other).await;
        quorum.release(&other).await.unwrap();
    }
    let first = claim(Mode::Exclusive);
    let token = take(&quorum, &first).await;
    quorum.release(&first).await.unwrap();
    servers[0].lose_data();
    servers[2].set_up(true);
    // Others find it empty, and watch over it until it votes again.
    for _ in 0..40 {
        let _ = quorum.shared.check_sign(0, TTL, quorum.shared.epochs()[0]).await;
        nap(TTL / 10).await;
    }
    servers[1].set_up(false);
    let next = claim(Mode::Exclusive);
    (token, take(&quorum, &next).await)
}

#[test]
fn a_member_that_lost_its_data_and_keeps_its_epoch_forgets_the_token() {
    let (first, next) = runtime().block_on(forget(Guards::ALL));
    assert!(next > first, "{next} after {first}");
    let unguarded = Guards { epochs: false, ..Guards::ALL };
    let (first, next) = runtime().block_on(forget(unguarded));
    assert!(next <= first, "without epochs tokens go back: {next} after {first}");
}

/// A claim is broken by force at member 0 between its grant there and its raise, which makes the
/// token that member 1 gave the greatest. Gives the tokens of those who got through.
async fn broken_before_the_raise(guards: Guards) -> (Option<Token>, Token) {
    let servers = servers();
    let quorum = quorum(&servers, 0, guards);
    quorum.shared.open().await.unwrap();
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
        Ok(Answered { answer: Acquisition::Granted(grant), .. }) => Some(grant.token),
        _ => None,
    };
    servers[2].set_up(true);
    servers[1].set_up(false);
    let next = claim(Mode::Exclusive);
    (taken, take(&quorum, &next).await)
}

#[test]
fn a_raise_of_a_claim_that_is_gone_does_not_count() {
    let (first, _) = runtime().block_on(broken_before_the_raise(Guards::ALL));
    assert_eq!(first, None, "it was not there any more");
    let unguarded = Guards { raise_only_live: false, ..Guards::ALL };
    let (first, next) = runtime().block_on(broken_before_the_raise(unguarded));
    assert!(first.is_some_and(|first| first >= next), "tokens go back: {next} after {first:?}");
}

/// A try is refused by a majority while another member grants it and its answer gets lost. Says
/// whether that member is free half a lease later.
async fn ghost(guards: Guards) -> bool {
    let servers = servers();
    let quorum = quorum(&servers, 0, guards);
    quorum.shared.open().await.unwrap();
    servers[0].set_up(false);
    take(&quorum, &claim(Mode::Exclusive)).await;
    servers[0].set_up(true);
    servers[0].set_mute(true);
    let refused = quorum.acquire(&claim(Mode::Exclusive), Patience::Try).await.unwrap().answer;
    assert_eq!(refused, Acquisition::Busy);
    servers[0].set_mute(false);
    nap(TTL / 2).await;
    servers[0].driver().inspect(&key()).await.unwrap().is_free()
}

#[test]
fn what_a_member_granted_without_being_heard_is_taken_back() {
    assert!(runtime().block_on(ghost(Guards::ALL)));
    let unguarded = Guards { ghosts: false, ..Guards::ALL };
    assert!(!runtime().block_on(ghost(unguarded)), "it stays until its lease ends");
}

/// A member is in a new epoch, of which a program hears in two rounds at once: the first to hear
/// must not vouch for the tokens of the other. Gives the token of a holder before, and of those
/// who hold next.
async fn two_rounds_at_once(guards: Guards) -> (Token, Vec<Token>) {
    let servers = servers();
    let (before, after) = (quorum(&servers, 0, guards), quorum(&servers, 1, guards));
    before.shared.open().await.unwrap();
    after.shared.open().await.unwrap();
    servers[0].lose_data();
    for _ in 0..40 {
        let _ = before.shared.check_sign(0, TTL, before.shared.epochs()[0]).await;
        nap(TTL / 10).await;
    }
    servers[2].set_up(false);
    let named = |name: &str| {
        let mut claim = Claim::clone(&claim(Mode::Exclusive));
        claim.key = Key::new(Namespace::default(), Space::Lock, Name::new(name).unwrap());
        Arc::new(claim)
    };
    let names = ["a", "b"];
    let mut first = Vec::new();
    for name in names {
        let claim = named(name);
        first.push(take(&before, &claim).await);
        before.release(&claim).await.unwrap();
    }
    servers[2].set_up(true);
    servers[1].set_up(false);
    let claims = names.map(named);
    let rounds = claims.each_ref().map(|claim| after.acquire(claim, Patience::Try));
    let granted = futures_util::future::join_all(rounds).await.into_iter().map(|got| match got {
        Ok(Answered { answer: Acquisition::Granted(grant), .. }) => grant.token,
        other => panic!("they are free: {other:?}"),
    });
    (first.into_iter().max().unwrap(), granted.collect())
}

#[test]
fn a_round_counts_with_the_epochs_that_it_began_with() {
    let (first, next) = runtime().block_on(two_rounds_at_once(Guards::ALL));
    assert!(next.iter().all(|next| *next > first), "{next:?} after {first}");
    let unguarded = Guards { epoch_of_the_round: false, ..Guards::ALL };
    let (first, next) = runtime().block_on(two_rounds_at_once(unguarded));
    assert!(next.iter().any(|next| *next <= first), "tokens go back: {next:?} after {first}");
}

/// A renewal may ask for more than the quorum keeps; members are asked for no more than that.
#[test]
fn a_renewal_never_makes_a_lease_longer_than_the_longest() {
    runtime().block_on(async {
        let servers = servers();
        let quorum = quorum(&servers, 0, Guards::ALL);
        let claim = claim(Mode::Exclusive);
        take(&quorum, &claim).await;
        let mut greedy = Claim::clone(&claim);
        greedy.hold_ttl = TTL * 100;
        let answers = quorum.renew(&[Arc::new(greedy)]).await.unwrap();
        assert!(matches!(answers[0], Ok(Renewal::Holds(_))), "{answers:?}");
        for server in &servers {
            let line = server.driver().inspect(&key()).await.unwrap().line;
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
            let quorum = quorum(&servers, seed, Guards::ALL);
            quorum.shared.open().await.unwrap();
            let claim = claim(Mode::Exclusive);
            let asked = quorum.clock().now();
            let answer = quorum.acquire(&claim, Patience::Try).await.unwrap().answer;
            let Acquisition::Granted(grant) = answer else { panic!("it is free") };
            assert!(grant.since.unwrap() <= asked, "seed {seed}");
            servers[0].driver().release(&inner(&quorum, &claim)).await.unwrap();
            for _ in 0..2 {
                nap(TTL / 10).await;
                let asked = quorum.clock().now();
                match quorum.renew_single(&claim).await.unwrap() {
                    Renewal::Holds(grant) => assert!(grant.since.unwrap() <= asked, "seed {seed}"),
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
        });
    }
}

/// The claim as the members have it.
fn inner(quorum: &QuorumDriver, claim: &Claim) -> Arc<Claim> {
    quorum.shared.hold(claim).expect("it is known").claim()
}

/// One of two members has let go of a claim, and is repaired around the end of the lease: then
/// somebody else may have come and gone in between. Says whether it holds, and whether the lease of
/// the last majority was over by then.
async fn repaired_at_the_end(seed: u64) -> (bool, bool) {
    let servers = servers();
    let quorum = quorum(&servers, seed, Guards::ALL);
    quorum.shared.open().await.unwrap();
    servers[2].set_up(false);
    let claim = claim(Mode::Exclusive);
    let answer = quorum.acquire(&claim, Patience::Try).await.unwrap().answer;
    let Acquisition::Granted(grant) = answer else { panic!("it is free") };
    let until = trusted_until(grant.since.unwrap(), grant.ttl, Margin::default());
    servers[1].driver().release(&inner(&quorum, &claim)).await.unwrap();
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
