use std::future::pending;
use std::sync::Weak;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

use super::*;
use crate::answers::LeaseStart;
use crate::clock::TokioClock;
use crate::{ClientIdentity, Key, Mode, Name, Namespace, Space, Token};

const LONG: Duration = Duration::from_secs(300);

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
}

fn submitting(waiting: &Waiters<ClaimId>, claim: &Arc<Claim>) {
    let acquire = Acquire { claim: claim.clone(), patience: Patience::Wait };
    // Its batch stays under way.
    std::mem::forget(waiting.submitting(Batch { releases: &[], acquires: &[acquire] }));
}

fn listened_to() -> (Waiters<ClaimId>, Arc<Claim>) {
    let (waiting, claim) = (Waiters::new(|id: &ClaimId| *id), claim());
    waiting.listening_started();
    submitting(&waiting, &claim);
    (waiting, claim)
}

#[test]
fn who_is_to_ask_at_once_is_not_put_off_by_an_answer_that_was_under_way() {
    let (waiting, claim) = listened_to();
    // Notified before it is known to be in the queue, and then the answer: nothing for a long time.
    waiting.ask_now(&claim.id);
    assert!(waiting.due(SteadyClock.now()).0.is_empty(), "it may not be in line yet");
    waiting.queued(&claim.id, 1, Some(LONG));
    let (due, next) = waiting.due(SteadyClock.now());
    assert_eq!((due.len(), next), (1, None));
    // Once it is asked about, the answer to that counts.
    locked(&due[0].note).ask_now = false;
    waiting.queued(&claim.id, 1, Some(LONG));
    let (due, next) = waiting.due(SteadyClock.now());
    assert!(due.is_empty() && next.is_some());
}

#[test]
fn who_was_told_while_nobody_waited_is_told_later() {
    let (waiting, claim) = listened_to();
    let told_grant = Grant {
        token: crate::Token::new(7).unwrap(),
        ttl: LONG,
        start: LeaseStart::LastAnswered,
        margin: Duration::ZERO,
    };
    waiting.granted(&claim.id, |_| told_grant);
    let mut outcome = std::pin::pin!(waiting.outcome(&claim));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let answer = outcome.as_mut().poll(&mut context);
    assert!(matches!(answer, std::task::Poll::Ready(Ok(grant)) if grant == told_grant));
    waiting.remove(&claim.id);
    assert!(!waiting.holds(&claim.id, told_grant), "nobody waits any more");
}

#[test]
fn where_nobody_tells_it_a_claim_is_asked_about_though_the_lease_ahead_is_long() {
    let (waiting, claim) = (Waiters::new(|id: &ClaimId| *id), claim());
    submitting(&waiting, &claim);
    waiting.queued(&claim.id, 1, Some(LONG));
    let soon = SteadyClock.now().after(Duration::from_millis(100));
    assert_eq!(waiting.due(soon).0.len(), 1);
    // From when messages arrive, the lease counts.
    waiting.listening_started();
    locked(&waiting.due(soon).0[0].note).ask_now = false;
    waiting.queued(&claim.id, 1, Some(LONG));
    assert!(waiting.due(soon).0.is_empty());
}

#[test]
fn a_claim_is_known_while_its_batch_is_under_way_and_after_that_only_if_it_waits() {
    let lost = Error::retryable("x", "no answer");
    let mismatch = Error::LimitMismatch { name: "a".to_owned(), in_use: 1, asked: 2 };
    let queued = Acquisition::Queued { ahead: 1 };
    let busy = Acquisition::Busy;
    let answers = [
        (Some(Ok(&queued)), 1),
        (Some(Err(&lost)), 0),
        (Some(Ok(&busy)), 0),
        (Some(Err(&mismatch)), 0),
        // The batch failed as a whole, or its future was dropped.
        (None, 0),
    ];
    for (answer, known) in answers {
        let (waiting, claim) = (Waiters::new(|id: &ClaimId| *id), claim());
        let acquire = Acquire { claim: claim.clone(), patience: Patience::Wait };
        let acquires = std::slice::from_ref(&acquire);
        let submitted = waiting.submitting(Batch { releases: &[], acquires });
        assert_eq!(locked(&waiting.waiters).len(), 1);
        if let Some(answer) = answer {
            waiting.acquired(&claim.id, answer, 0, Some(LONG));
        }
        drop(submitted);
        assert_eq!(locked(&waiting.waiters).len(), known, "{answer:?}");
        drop(waiting.submitting(Batch { releases: &[claim], acquires: &[] }));
        assert!(locked(&waiting.waiters).is_empty());
    }
}

/// The claim may have ended since, and been put into its queue again.
#[test]
fn a_grant_that_was_faster_than_an_answer_that_got_lost_counts_until_the_claim_is_acquired_again() {
    let queued = Acquisition::Queued { ahead: 1 };
    let acquire = |claim: &Arc<Claim>| Acquire { claim: claim.clone(), patience: Patience::Wait };
    // The batch is submitted again, or the driver sent it twice.
    for is_submitted_again in [true, false] {
        let (waiting, claim) = (Waiters::new(|id: &ClaimId| *id), claim());
        let acquires = [acquire(&claim)];
        let first = waiting.submitting(Batch { releases: &[], acquires: &acquires });
        waiting.granted(&claim.id, |_| grant());
        let second = is_submitted_again.then(|| {
            drop(first);
            assert!(waiting.is_waiting(&claim.id));
            waiting.submitting(Batch { releases: &[], acquires: &acquires })
        });
        let ambiguous = u32::from(!is_submitted_again);
        waiting.acquired(&claim.id, Ok(&queued), ambiguous, Some(LONG));
        drop(second);
        assert!(waiting.outcome(&claim).now_or_never().is_none(), "{is_submitted_again}");
        let (due, _) = waiting.due(SteadyClock.now());
        assert_eq!(due.is_empty(), is_submitted_again, "it is asked about");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_and_is_not_known_is_asked_about_at_once() {
    let driver = Mute::new();
    driver.waiting.start_polling(&driver);
    let claim = claim();
    *locked(&driver.holds) = Some(claim.id);
    let begun = Instant::now();
    assert_eq!(driver.waiting.outcome(&claim).await.unwrap(), grant());
    assert!(begun.elapsed() < Duration::from_millis(5), "{:?}", begun.elapsed());
}

#[test]
fn a_grant_counts_from_the_request_that_renewed_unless_the_driver_names_its_start() {
    let sent = Moment::from_nanos(7);
    let grant = |start| Grant {
        token: Token::new(1).unwrap(),
        ttl: Duration::from_secs(1),
        start,
        margin: Duration::ZERO,
    };
    let start = |of| match Renewal::Holds(grant(of)).counted_from(sent) {
        Renewal::Holds(grant) => grant.start,
        other => panic!("{other:?}"),
    };
    assert_eq!(start(LeaseStart::LastAnswered), LeaseStart::Sent(sent));
    let named = LeaseStart::Sent(Moment::from_nanos(3));
    assert_eq!(start(named), named);
}

#[test]
fn a_claim_is_asked_about_often_again_when_its_list_moves() {
    let (waiting, claim) = (Waiters::new(|id: &ClaimId| *id), claim());
    submitting(&waiting, &claim);
    let in_6_ms = || SteadyClock.now().after(Duration::from_millis(6));
    (0..40).for_each(|_| waiting.queued(&claim.id, 2, Some(LONG)));
    assert!(waiting.due(in_6_ms()).0.is_empty(), "it is the second");
    waiting.queued(&claim.id, 1, Some(LONG));
    assert_eq!(waiting.due(in_6_ms()).0.len(), 1);
}

/// A backend without messages on a paused clock, where claims wait until a test lets them hold.
struct Mute {
    waiting: Waiters<ClaimId>,
    asked: Mutex<Vec<Instant>>,
    holds: Mutex<Option<ClaimId>>,
}

impl Mute {
    fn new() -> Arc<Self> {
        let mut waiting = Waiters::new(|id: &ClaimId| *id);
        waiting.clock = TokioClock::shared();
        Arc::new(Self { waiting, asked: Mutex::default(), holds: Mutex::default() })
    }

    fn queue(self: &Arc<Self>, claim: &Arc<Claim>, ahead: u32) {
        submitting(&self.waiting, claim);
        self.waiting.queued(&claim.id, ahead, Some(LONG));
        self.waiting.start_polling(self);
    }

    /// When it was asked, over so long from now on.
    async fn asked_within(&self, time: Duration) -> Vec<Instant> {
        locked(&self.asked).clear();
        sleep(time).await;
        std::mem::take(&mut locked(&self.asked))
    }
}

impl PolledDriver for Mute {
    type Name = ClaimId;

    fn waiting(&self) -> &Waiters<ClaimId> {
        &self.waiting
    }

    async fn ask(&self, claims: &[Arc<Claim>]) -> Vec<Result<(Renewal, Option<Duration>), Error>> {
        locked(&self.asked).push(Instant::now());
        let holds = *locked(&self.holds);
        let answer = |claim: &Arc<Claim>| match holds == Some(claim.id) {
            true => Ok((Renewal::Holds(grant()), None)),
            false => Ok((Renewal::Waits { ahead: 1 }, Some(LONG))),
        };
        claims.iter().map(answer).collect()
    }

    async fn listen(_: Weak<Self>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        pending().await
    }
}

fn grant() -> Grant {
    Grant {
        token: Token::new(7).unwrap(),
        ttl: LONG,
        start: LeaseStart::LastAnswered,
        margin: Duration::ZERO,
    }
}

fn most_in_a_second(asked: &[Instant]) -> usize {
    let a_second = Duration::from_secs(1);
    let is_within =
        |from: &Instant, at: &Instant| at >= from && at.duration_since(*from) < a_second;
    let count = |from| asked.iter().filter(|at| is_within(from, at)).count();
    asked.iter().map(count).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn the_first_waiter_is_asked_about_after_a_quarter_of_the_last_hand_over() {
    let driver = Mute::new();
    let (first, second) = (claim(), claim());
    driver.queue(&first, 1);
    sleep(Duration::from_millis(7)).await;
    *locked(&driver.holds) = Some(first.id);
    driver.waiting.outcome(&first).await.unwrap();
    driver.waiting.remove(&first.id);
    // It was seen after 10 ms, so the next one is asked about after 2.5 ms (and the timer's millisecond).
    let queued = Instant::now();
    driver.queue(&second, 1);
    let asked = driver.asked_within(Duration::from_millis(10)).await;
    let after: Vec<_> = asked.iter().map(|at| at.duration_since(queued).as_millis()).collect();
    assert_eq!(after, [3, 6, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_reads_for_all_claims_goes_by_the_fastest_queue() {
    let driver = Mute::new();
    let (waiting, longest) = (&driver.waiting, Duration::from_millis(15));
    waiting.listening_started();
    assert_eq!(waiting.next_poll(longest), longest, "no claim waits");
    let (first, second) = (claim(), claim());
    submitting(waiting, &first);
    waiting.queued(&first.id, 2, Some(LONG));
    assert_eq!(waiting.next_poll(longest), longest);
    sleep(Duration::from_millis(8)).await;
    waiting.queued(&first.id, 1, Some(LONG));
    let pause = waiting.next_poll(longest).as_millis();
    assert!((2..=3).contains(&pause), "a quarter of 8 ms, not {pause}");
    submitting(waiting, &second);
    waiting.queued(&second.id, 2, Some(LONG));
    assert_eq!(waiting.next_poll(longest).as_millis(), pause);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(waiting.next_poll(longest), longest, "it stands still");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_stands_still_is_asked_about_ten_times_a_second() {
    let driver = Mute::new();
    let claim = claim();
    driver.waiting.hand_overs.saw(
        &claim.key,
        Progress::next(None, 1, driver.waiting.clock.now()),
        0,
        driver.waiting.clock.now(),
    );
    driver.queue(&claim, 1);
    let asked = driver.asked_within(Duration::from_secs(2)).await;
    assert!((50..200).contains(&asked.len()), "{} at first", asked.len());
    let asked = driver.asked_within(Duration::from_secs(10)).await;
    assert!((98..=100).contains(&asked.len()), "{} later", asked.len());
}

#[tokio::test(start_paused = true)]
async fn at_most_two_hundred_requests_are_sent_a_second_for_first_waiters() {
    let driver = Mute::new();
    // Queues that move all the time, one millisecond after the other.
    let moving = tokio::spawn({
        let driver = driver.clone();
        async move {
            loop {
                let claim = claim();
                driver.queue(&claim, 2);
                for _ in 0..3 {
                    sleep(Duration::from_millis(1)).await;
                    driver.waiting.ask_now(&claim.id);
                }
                driver.waiting.holds(&claim.id, grant());
                driver.waiting.remove(&claim.id);
            }
        }
    });
    let asked = driver.asked_within(Duration::from_secs(10)).await;
    moving.abort();
    let most = most_in_a_second(&asked);
    assert!((180..=200).contains(&most), "{most} in a second");
}
