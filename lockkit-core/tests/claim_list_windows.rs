//! A line of which only a window is loaded answers as the whole line does: the same steps on both,
//! by random and exhaustively in a small scope, with windows that are as small as they can be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkit_core::claim_list::{
    ApplyError, Change, ChangeKind, ClaimList, ListOperation, OperationResult, QueuedClaim,
    TokenSequence,
};
use lockkit_core::clock::Moment;
use lockkit_core::driver::{BreakMode, Patience, SetLimit};
use lockkit_core::{Claim, ClientIdentity, Key, Mode, Name, Namespace, Token, queue};
use proptest::prelude::*;

/// A step on the claims of a pool, by index.
#[derive(Clone, Copy, Debug)]
enum Act {
    Look,
    Acquire(usize, Patience),
    Renew(usize),
    Release(usize),
    Shorten(usize, u64),
    Downgrade(usize),
    Raise(usize, u64),
    /// Of the claim that was given this token, counted back from the last.
    Break(u64, BreakMode),
    Resize(u32),
    Wait(u64),
}

fn pool(modes: &[Mode]) -> Vec<Claim> {
    let identity = ClientIdentity::new("here", 1, "test");
    let identity = Arc::new(identity);
    let name = Name::new("a").unwrap();
    let claim = |(at, mode): (usize, &Mode)| {
        let key = Key::new(Namespace::default(), mode.space(), name.clone());
        let hold = Duration::from_millis([5, 12, 30][at % 3]);
        let wait = Duration::from_millis([4, 9, 20][at / 3 % 3]);
        Claim::new(key, *mode, hold, wait, identity.clone())
    };
    modes.iter().enumerate().map(claim).collect()
}

/// What a driver keeps: the rows of one list, the limit that it was given, the last token.
#[derive(Clone, Default)]
struct Rows {
    rows: BTreeMap<u64, QueuedClaim>,
    given: Option<u32>,
    last: u64,
}

impl Rows {
    /// Loads all, applies, and writes what changed.
    fn apply_whole(&mut self, step: &ListOperation<'_>, now: Moment) -> OperationResult {
        let mut line = ClaimList::window(self.rows.values().cloned(), None, self.given);
        let mut tokens = TokenSequence::above(self.last);
        let applied = line.apply(step, now, &mut tokens).expect("nothing is missing");
        assert!(!applied.more);
        self.last = tokens.last();
        self.write(&line, &applied.changes);
        applied.answer
    }

    /// The same with the first `size` rows, and the ones that the step is about.
    fn apply_window(
        &mut self,
        step: &ListOperation<'_>,
        about: Option<&Claim>,
        now: Moment,
        size: usize,
    ) -> OperationResult {
        let mut size = size;
        let (front, known_to) = self.front(size);
        let named = self.rows.values().filter(|row| match (step, about) {
            (ListOperation::Break(token, _), _) => row.token == *token,
            // Who holds is at the front.
            (_, Some(claim)) => row.id == claim.id && !row.holds(),
            _ => false,
        });
        let named: Vec<QueuedClaim> = named.cloned().collect();
        let mut line = ClaimList::window(front, known_to, self.given);
        line.extend(named, known_to);
        let mut tokens = TokenSequence::above(self.last);
        let mut more = |line: &mut ClaimList| {
            size += 1;
            let (front, known_to) = self.front(size);
            line.extend(front, known_to);
        };
        let mut applied = loop {
            match line.apply(step, now, &mut tokens) {
                Ok(applied) => break applied,
                Err(ApplyError::NeedMore) => more(&mut line),
                Err(other) => panic!("{other:?}"),
            }
        };
        while applied.more {
            more(&mut line);
            match line.apply(&ListOperation::Advance, now, &mut tokens) {
                Ok(looked) => {
                    applied.changes.extend(looked.changes);
                    applied.more = looked.more;
                }
                Err(stop) => assert_eq!(stop, ApplyError::NeedMore),
            }
        }
        self.last = tokens.last();
        self.write(&line, &applied.changes);
        applied.answer
    }

    fn front(&self, size: usize) -> (Vec<QueuedClaim>, Option<u64>) {
        let front: Vec<QueuedClaim> = self.rows.values().take(size).cloned().collect();
        let known_to = (self.rows.len() > size).then(|| front.last().map_or(0, |row| row.sequence));
        (front, known_to)
    }

    fn write(&mut self, line: &ClaimList, changes: &[Change]) {
        for change in changes {
            match line.get(change.sequence) {
                Some(row) => drop(self.rows.insert(change.sequence, row.clone())),
                None => drop(self.rows.remove(&change.sequence)),
            }
            if change.kind == ChangeKind::Removed {
                assert!(!self.rows.contains_key(&change.sequence));
            }
        }
    }

    fn live(&self, now: Moment) -> Vec<&QueuedClaim> {
        self.rows.values().filter(|row| row.is_live(now)).collect()
    }
}

/// The whole line, and windows of it.
struct Both {
    pool: Vec<Claim>,
    whole: Rows,
    window: Rows,
    size: usize,
    now: Moment,
}

impl Both {
    fn new(modes: &[Mode], size: usize) -> Self {
        let (whole, window) = (Rows::default(), Rows::default());
        Self { pool: pool(modes), whole, window, size, now: Moment::from_nanos(1_000_000_000) }
    }

    fn act(&mut self, act: Act) {
        let about = match act {
            Act::Acquire(at, _) | Act::Renew(at) | Act::Release(at) | Act::Shorten(at, _) => {
                Some(self.pool[at].clone())
            }
            Act::Downgrade(at) | Act::Raise(at, _) => Some(self.pool[at].clone()),
            _ => None,
        };
        let given = self.whole.given;
        let step = match (act, &about) {
            (Act::Acquire(_, patience), Some(claim)) => {
                ListOperation::Acquire { claim, with: (), patience, given }
            }
            (Act::Renew(_), Some(claim)) => ListOperation::Renew(claim),
            (Act::Release(_), Some(claim)) => ListOperation::Release(claim),
            (Act::Shorten(_, ttl), Some(claim)) => {
                ListOperation::Shorten(claim, Duration::from_millis(ttl))
            }
            (Act::Downgrade(_), Some(claim)) => ListOperation::Downgrade(claim),
            (Act::Raise(_, above), Some(claim)) => {
                ListOperation::Raise(claim, self.token(above, 0))
            }
            (Act::Break(back, force), _) => ListOperation::Break(self.token(0, back), force),
            (Act::Resize(limit), _) => ListOperation::Resize { limit: SetLimit::To(limit), given },
            (Act::Wait(ms), _) => {
                self.now = self.now.after(Duration::from_millis(ms));
                return;
            }
            _ => ListOperation::Advance,
        };
        let whole = self.whole.apply_whole(&step, self.now);
        let window = self.window.apply_window(&step, about.as_ref(), self.now, self.size);
        assert_eq!(window, whole, "the answer to {act:?}");
        assert_eq!(self.window.live(self.now), self.whole.live(self.now), "after {act:?}");
        assert_eq!(self.window.last, self.whole.last, "after {act:?}");
        if let OperationResult::Limit(limit) = whole {
            (self.whole.given, self.window.given) = (Some(limit), Some(limit));
        }
        self.check_rule();
    }

    fn token(&self, above: u64, back: u64) -> Token {
        Token::new((self.whole.last + above).saturating_sub(back).max(1)).unwrap()
    }

    /// Who holds is at the front, and they fit, unless the limit was lowered under them; who waits
    /// first does not.
    fn check_rule(&self) {
        let rows: Vec<&QueuedClaim> = self.whole.rows.values().collect();
        let holding = rows.iter().take_while(|row| row.holds()).count();
        assert!(rows[holding..].iter().all(|row| !row.holds()), "holders are the front");
        if self.whole.given.is_none() {
            let modes = rows.iter().map(|row| row.mode);
            assert_eq!(holding, queue::holders(modes), "the rule");
        }
    }
}

fn any_act(claims: usize) -> impl Strategy<Value = Act> {
    let patience = prop_oneof![1 => Just(Patience::Try), 3 => Just(Patience::Wait)];
    let force = prop_oneof![Just(BreakMode::Graceful), Just(BreakMode::Forced)];
    prop_oneof![
        12 => (0..claims, patience).prop_map(|(at, patience)| Act::Acquire(at, patience)),
        4 => (0..claims).prop_map(Act::Renew),
        5 => (0..claims).prop_map(Act::Release),
        1 => (0..claims, 0..30_u64).prop_map(|(at, ttl)| Act::Shorten(at, ttl)),
        2 => (0..claims).prop_map(Act::Downgrade),
        1 => (0..claims, 0..6_u64).prop_map(|(at, above)| Act::Raise(at, above)),
        2 => (0..8_u64, force).prop_map(|(back, force)| Act::Break(back, force)),
        1 => Just(Act::Look),
        4 => (1..8_u64).prop_map(Act::Wait),
    ]
}

fn lock_modes() -> Vec<Mode> {
    (0..14).map(|at| if at % 3 == 0 { Mode::Exclusive } else { Mode::Shared }).collect()
}

fn permit_modes() -> Vec<Mode> {
    (0..14).map(|at| Mode::Permits { permits: 1 + at % 3, limit: 5 }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn windows_of_a_lock_answer_as_the_whole_line_does(
        size in 1..5_usize,
        acts in proptest::collection::vec(any_act(14), 1..120),
    ) {
        let mut both = Both::new(&lock_modes(), size);
        acts.into_iter().for_each(|act| both.act(act));
    }

    #[test]
    fn windows_of_a_semaphore_answer_as_the_whole_line_does(
        size in 1..5_usize,
        acts in proptest::collection::vec(
            prop_oneof![
                12 => any_act(14),
                1 => prop_oneof![Just(0), Just(2), Just(5), Just(7)].prop_map(Act::Resize),
            ],
            1..120,
        ),
    ) {
        let mut both = Both::new(&permit_modes(), size);
        acts.into_iter().for_each(|act| both.act(act));
    }
}

/// All sequences of four steps after three claims came, the time moving or not, with a window of
/// one.
#[test]
fn in_a_small_scope_every_sequence_keeps_the_rule_in_windows_too() {
    let mut acts = vec![Act::Wait(6), Act::Break(0, BreakMode::Forced)];
    for at in 0..3 {
        acts.extend([Act::Acquire(at, Patience::Wait), Act::Release(at), Act::Renew(at)]);
    }
    acts.push(Act::Downgrade(0));
    let families = [
        [Mode::Exclusive, Mode::Shared, Mode::Shared],
        [Mode::Exclusive, Mode::Exclusive, Mode::Shared],
        [1, 2, 1].map(|permits| Mode::Permits { permits, limit: 2 }),
    ];
    let mut checked = 0_u64;
    for modes in families {
        for mut number in 0..acts.len().pow(4) {
            let mut both = Both::new(&modes, 1);
            (0..3).for_each(|at| both.act(Act::Acquire(at, Patience::Wait)));
            for _ in 0..4 {
                both.act(acts[number % acts.len()]);
                number /= acts.len();
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * 12_u64.pow(4));
}

/// What a driver loads for a release does not depend on how many wait.
#[test]
fn a_release_with_a_thousand_waiting_needs_the_first_three_claims_only() {
    let claims = pool(&[Mode::Exclusive; 1000]);
    let now = Moment::from_nanos(1_000_000_000);
    let (mut whole, mut tokens) = (ClaimList::new(), TokenSequence::above(0));
    for claim in &claims {
        let step =
            ListOperation::Acquire { claim, with: (), patience: Patience::Wait, given: None };
        whole.apply(&step, now, &mut tokens).unwrap();
    }
    let front: Vec<QueuedClaim> = whole.entries().take(3).cloned().collect();
    let known_to = Some(front[2].sequence);
    let mut line = ClaimList::window(front, known_to, None);
    let step = ListOperation::Release(&claims[0]);
    let applied = line.apply(&step, now, &mut tokens).unwrap();
    assert!(!applied.more);
    let changed = |change: &Change| (change.id, change.kind);
    let changes: Vec<_> = applied.changes.iter().map(changed).collect();
    let (left, next) = (claims[0].id, claims[1].id);
    assert_eq!(changes, [(left, ChangeKind::Removed), (next, ChangeKind::Promoted)]);
    let woken: Vec<_> = applied.changes.iter().filter(|c| c.wakes()).map(|c| c.id).collect();
    assert_eq!(woken, [left, next]);
}
