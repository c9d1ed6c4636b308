//! Histories in the making, which are handed to the judge.

use std::time::Duration;

use lockkit_core::capabilities::{Capabilities, Fault, Guarantee};
use lockkit_lab::history::violation::Invariant;
use lockkit_lab::history::{
    Event, EventKind, HeldMode, History, HistoryJudgement, Recorded, RecordedPromises, draw, judge,
};

use super::second;

pub(super) const MS: u64 = 1_000_000;
/// The longest lease of these histories.
pub(super) const LEASE: Duration = Duration::from_secs(10);
pub(super) const X: HeldMode = HeldMode::Exclusive;
pub(super) const S: HeldMode = HeldMode::Shared;

/// A history in the making; times are in milliseconds.
#[derive(Default)]
pub(super) struct Tale(pub(super) Vec<Event>);

impl Tale {
    pub(super) fn tell(mut self, at: u64, client: u32, what: EventKind) -> Self {
        self.0.push(Event { at: at * MS, client, what });
        self
    }

    pub(super) fn asks(self, at: u64, client: u32, op: u64, how: HeldMode) -> Self {
        self.tell(at, client, EventKind::Asked { op, lock: "a".to_owned(), how })
    }

    pub(super) fn granted(self, at: u64, client: u32, op: u64, token: u64, until: u64) -> Self {
        let (since, valid_until) = (at * MS, until * MS);
        self.tell(at, client, EventKind::Granted { op, token, since, valid_until })
    }

    pub(super) fn valid(self, at: u64, client: u32, op: u64, until: u64) -> Self {
        self.tell(at, client, EventKind::Valid { op, valid_until: until * MS })
    }

    pub(super) fn ends(self, at: u64, client: u32, op: u64) -> Self {
        self.tell(at, client, EventKind::Ended { op, lost: None })
    }

    pub(super) fn loses(self, at: u64, client: u32, op: u64) -> Self {
        self.tell(at, client, EventKind::Ended { op, lost: Some("its lease ended".to_owned()) })
    }

    /// Asked and granted in one go, released later.
    pub(super) fn holds(
        self,
        client: u32,
        op: u64,
        how: HeldMode,
        token: u64,
        from: u64,
        to: u64,
    ) -> Self {
        self.asks(from - 1, client, op, how)
            .granted(from, client, op, token, 10_000)
            .ends(to, client, op)
    }

    pub(super) fn fault(self, at: u64, fault: Fault) -> Self {
        let on = "server".to_owned();
        let over = EventKind::FaultEnds { fault, on: on.clone() };
        self.tell(at, 0, EventKind::FaultBegins { fault, on, locks: vec![] }).tell(at + 1, 0, over)
    }

    /// On a server that has this lock and no other.
    pub(super) fn fault_on(self, at: u64, fault: Fault, on: &str, lock: &str) -> Self {
        let (on, locks) = (on.to_owned(), vec![lock.to_owned()]);
        let over = EventKind::FaultEnds { fault, on: on.clone() };
        self.tell(at, 0, EventKind::FaultBegins { fault, on, locks }).tell(at + 1, 0, over)
    }

    pub(super) fn fault_for(self, at: u64, lasts: u64, fault: Fault) -> Self {
        let on = "server".to_owned();
        let over = EventKind::FaultEnds { fault, on: on.clone() };
        self.tell(at, 0, EventKind::FaultBegins { fault, on, locks: vec![] }).tell(
            at + lasts,
            0,
            over,
        )
    }

    /// Asks for another lock than the others do, and is granted it at once.
    pub(super) fn holds_beside(mut self, client: u32, op: u64, token: u64, at: u64) -> Self {
        let lock = "beside".to_owned();
        self = self.tell(at, client, EventKind::Asked { op, lock, how: X });
        self.granted(at + 1, client, op, token, at + 5).ends(at + 4, client, op)
    }

    pub(super) fn refused(self, at: u64, client: u32, op: u64) -> Self {
        self.tell(at, client, EventKind::Refused { op })
    }

    pub(super) fn register(
        mut self,
        at: u64,
        client: u32,
        op: u64,
        token: u64,
        write: Option<u64>,
    ) -> Self {
        let register = "r".to_owned();
        self = self.tell(at, client, EventKind::RegisterAsked { op, register, token, write });
        self
    }

    pub(super) fn done(self, at: u64, client: u32, op: u64, value: u64) -> Self {
        self.tell(at, client, EventKind::RegisterDone { op, value })
    }

    pub(super) fn stale(self, at: u64, client: u32, op: u64, highest: u64) -> Self {
        self.tell(at, client, EventKind::RegisterStale { op, highest })
    }

    /// Asked and answered in one go.
    pub(super) fn writes(self, at: u64, client: u32, op: u64, token: u64, value: u64) -> Self {
        self.register(at, client, op, token, Some(value)).done(at + 1, client, op, value)
    }

    pub(super) fn reads(self, at: u64, client: u32, op: u64, token: u64, value: u64) -> Self {
        self.register(at, client, op, token, None).done(at + 1, client, op, value)
    }

    /// The backend says that this claim of the operation waits in its queue; it was asked just before.
    pub(super) fn waits(self, at: u64, client: u32, op: u64, claim: u64) -> Self {
        self.tell(at, client, EventKind::Placed { op, claim, sent: (at - 1) * MS })
    }

    /// So many take it one after the other, from this time on, 10 ms each.
    pub(super) fn many_hold(mut self, count: u64, from: u64) -> Self {
        for i in 0..count {
            let at = from + i * 10;
            self = self.holds(50, i, X, 100 + i, at, at + 9);
        }
        self
    }

    /// So many are asked for from this time on, 10 ms each, and fail.
    pub(super) fn many_fail(mut self, count: u64, from: u64) -> Self {
        for op in 1000..1000 + count {
            let at = from + (op - 1000) * 10;
            let error = "no such function".to_owned();
            self = self.asks(at, 60, op, X).tell(at + 5, 60, EventKind::Failed { op, error });
        }
        self
    }

    pub(super) fn judged(self) -> HistoryJudgement {
        self.judged_on(|_| ())
    }

    /// On a backend that is different from others in this way.
    pub(super) fn judged_on(self, change: fn(&mut Capabilities)) -> HistoryJudgement {
        const FAULTS: &[(Fault, Guarantee)] =
            &[(Fault::DataLost, Guarantee::Nothing), (Fault::Failover, Guarantee::Tokens)];
        let mut capabilities = Capabilities::of("tale");
        capabilities.faults = FAULTS;
        change(&mut capabilities);
        let patience = Duration::from_secs(30);
        let history = History::new(self.0);
        let promises = RecordedPromises::of(&capabilities, patience, LEASE);
        let judgement = judge(&history, &promises);
        let drawing = draw::svg(&history, &judgement.violations);
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        agrees(Recorded { history, promises }, &judgement);
        judgement
    }

    #[track_caller]
    pub(super) fn convicted_of(self, rule: Invariant) {
        let judgement = self.judged();
        let rules: Vec<_> = judgement.violations.iter().map(|v| v.invariant).collect();
        assert!(rules.contains(&rule), "{rule:?} was not seen, only {rules:?}");
        assert!(
            rules.iter().all(|r| *r == rule),
            "more than {rule:?}: {:#?}",
            judgement.violations
        );
    }

    #[track_caller]
    pub(super) fn acquitted(self) -> HistoryJudgement {
        let judgement = self.judged();
        assert!(judgement.acquitted(), "{:#?}", judgement.violations);
        judgement
    }
}

/// A checker of another hand, which knows neither faults nor order nor progress, finds the same.
fn agrees(recorded: Recorded, judgement: &HistoryJudgement) {
    let excused = judgement.excused.iter().map(|excused| &excused.violation);
    let mut rules = judgement.violations.iter().chain(excused).map(|violation| violation.invariant);
    // It asks who asked, and a token that is given twice breaks its models only where they conflict.
    if rules.clone().any(|rule| matches!(rule, Invariant::Sound | Invariant::TokenOnce)) {
        return;
    }
    let seen =
        |rule| matches!(rule, Invariant::Exclusion | Invariant::TokensGrow | Invariant::Register);
    assert_eq!(second::finds_linearizable(&recorded), !rules.any(seen), "{judgement:#?}");
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap()
}

pub(super) fn tale() -> Tale {
    Tale::default()
}
