use super::*;
use crate::answers::LeaseStart;
use crate::{ClientIdentity, Key, Mode, Name, Namespace, Space, Token};

const LONG: Duration = Duration::from_secs(300);

fn claim() -> Arc<Claim> {
    let key = Key::new(Namespace::default(), Space::Lock, Name::new("a").unwrap());
    let identity = Arc::new(ClientIdentity::of_this_process());
    Arc::new(Claim::new(key, Mode::Exclusive, LONG, LONG, identity))
}

fn submitting(waiting: &Waiters<ClaimId>, claim: &Arc<Claim>) {
    let acquire = Acquire { claim: claim.clone(), patience: Patience::Wait };
    waiting.submitting(Batch { releases: &[], acquires: &[acquire] });
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
fn a_bell_hangs_until_it_is_known_that_the_claim_does_not_wait() {
    let lost = Error::retryable("x", "no answer");
    let mismatch = Error::LimitMismatch { name: "a".to_owned(), in_use: 1, asked: 2 };
    let queued = Acquisition::Queued { ahead: 1 };
    let busy = Acquisition::Busy;
    let answers = [(Ok(&queued), 1), (Err(&lost), 1), (Ok(&busy), 0), (Err(&mismatch), 0)];
    for (answer, hangs) in answers {
        let (waiting, claim) = listened_to();
        waiting.acquired(&claim.id, answer, Some(LONG));
        assert_eq!(locked(&waiting.waiters).len(), hangs, "{answer:?}");
        waiting.submitting(Batch { releases: &[claim], acquires: &[] });
        assert!(locked(&waiting.waiters).is_empty());
    }
}

/// What the documentation of drivers promises, however long a claim has been waiting.
#[test]
fn the_first_in_line_is_asked_about_ten_times_a_second_and_everybody_once() {
    let pause = poller::pause;
    for asked in [0, 1, 15, 16, 160, 1_600, 16_000, u32::MAX] {
        for ahead in [0, 1] {
            let pause = pause(ahead, asked);
            assert!(pause <= Duration::from_millis(100), "after {asked}: {pause:?}");
        }
        for ahead in [2, 10, 100, 1_000, u32::MAX] {
            let pause = pause(ahead, asked);
            assert!(pause <= Duration::from_secs(1), "{ahead}, after {asked}: {pause:?}");
        }
    }
    let ms = Duration::from_millis;
    assert_eq!([pause(1, 0), pause(1, 7), pause(1, 8), pause(1, 16)], [5, 5, 10, 20].map(ms));
    assert_eq!(pause(10, 0), ms(100), "the tenth");
    // No claim is asked about more often than every 5 ms.
    assert_eq!(pause(0, 0), ms(5));
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
    (0..40).for_each(|_| waiting.queued(&claim.id, 1, Some(LONG)));
    assert!(waiting.due(in_6_ms()).0.is_empty(), "nothing moves");
}
