//! Answers about claims: what a release found, and the results of many operations at once.

use std::sync::Arc;
use std::time::Duration;

use lockkit_core::Error;
use lockkit_core::clock::Moment;
use lockkit_core::driver::{
    Attempted, Batch, BatchError, BatchOutcome as DriverOutcome, Evidence as DriverEvidence,
    Released as DriverReleased, Renewed,
};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::status::{ClaimStatus, is_zero};
use super::text;

/// One result of several: an answer, or the problem of this operation alone. They are distinguished
/// by their fields: `state`, `found`, `code`.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::{OrProblem, Released};
///
/// let it: OrProblem<Released> = serde_json::from_str(r#"{"found": "claim"}"#)?;
/// assert!(matches!(it, OrProblem::Answer(_)));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OrProblem<T> {
    /// The answer.
    Answer(T),
    /// It failed.
    Problem(Box<Problem>),
}

impl<T> OrProblem<T> {
    /// The answer of this operation.
    fn of<R>(result: Result<R, BatchError>, answer: impl FnOnce(R) -> T) -> Self {
        match result {
            Ok(result) => Self::Answer(answer(result)),
            Err(error) => Self::Problem(Box::new(Problem::of_batch(&error))),
        }
    }

    fn result(self) -> Result<T, BatchError> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Problem(problem) => Err(problem.batch_error()),
        }
    }
}

/// The answer to `POST /v1/batch`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchOutcome {
    /// One for each release, in their order.
    pub released: Vec<OrProblem<Released>>,
    /// One for each acquire, in their order.
    pub acquired: Vec<OrProblem<ClaimStatus>>,
}

impl BatchOutcome {
    /// The answer to a batch that was received at `received`.
    pub fn of(outcome: DriverOutcome, received: Moment) -> Self {
        let acquired = |it| OrProblem::of(it, |it| ClaimStatus::of_acquisition(it, received));
        Self {
            released: outcome
                .released
                .into_iter()
                .map(|it| OrProblem::of(it, Released::of))
                .collect(),
            acquired: outcome.acquired.into_iter().map(acquired).collect(),
        }
    }

    /// The outcome of a batch that was sent at `sent`; `None` where operations have no result.
    pub fn for_driver(self, batch: &Batch<'_>, sent: Moment) -> Option<DriverOutcome> {
        if (self.released.len(), self.acquired.len())
            != (batch.releases.len(), batch.acquires.len())
        {
            return None;
        }
        let acquired = self.acquired.into_iter().zip(batch.acquires).map(|(acquired, acquire)| {
            let named = |mut error: BatchError| {
                if let Error::LimitMismatch { in_use, .. } = error.error {
                    error.error = acquire.claim.other_limit(in_use);
                }
                error
            };
            acquired.result().map_err(named)?.acquisition(sent).map_err(BatchError::refused)
        });
        let released = self.released.into_iter();
        let released = released.map(|it| it.result().map(|released| released.for_driver()));
        Some(DriverOutcome { released: released.collect(), acquired: acquired.collect() })
    }
}

/// The answer to `POST /v1/renew`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenewOutcome {
    /// One for each claim, in their order.
    pub answers: Vec<OrProblem<ClaimStatus>>,
    /// The servers of the backend that gave them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// A server of the backend, as the answers that it gave show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Which of the answers, by their positions.
    pub answers: Vec<usize>,
    /// Which run of a server it was.
    pub run: String,
    /// Over which connection of the service.
    #[serde(with = "text")]
    pub connection: u64,
    /// How far its data had got.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::maybe")]
    pub position: Option<u64>,
    /// Its clock, in microseconds since 1970. Never that of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_us: Option<u64>,
}

impl RenewOutcome {
    /// The answer to a renewal that was received at `received`.
    pub fn of(renewed: Vec<Result<Renewed, Error>>, received: Moment) -> Self {
        let mut evidence: Vec<(Arc<DriverEvidence>, Vec<usize>)> = Vec::new();
        let mut answers = Vec::with_capacity(renewed.len());
        for (at, renewed) in renewed.into_iter().enumerate() {
            let seen = renewed.as_ref().ok().and_then(|renewed| renewed.evidence.clone());
            if let Some(seen) = seen {
                match evidence.iter_mut().find(|(known, _)| *known == seen) {
                    Some((_, answers)) => answers.push(at),
                    None => evidence.push((seen, vec![at])),
                }
            }
            answers.push(match renewed {
                Ok(it) => OrProblem::Answer(ClaimStatus::of_renewal(it.renewal, received)),
                Err(error) => OrProblem::Problem(Box::new(Problem::of(&error))),
            });
        }
        Self { answers, evidence: evidence.into_iter().map(Evidence::of).collect() }
    }

    /// The results for a driver whose request was sent at `sent`.
    pub fn for_driver(self, sent: Moment) -> Vec<Result<Renewed, Error>> {
        let renewed = |answer: OrProblem<ClaimStatus>| -> Result<Renewed, Error> {
            Ok(answer.result().map_err(|failed| failed.error)?.renewal(sent).into())
        };
        let mut all: Vec<_> = self.answers.into_iter().map(renewed).collect();
        for evidence in self.evidence {
            let seen = evidence.for_driver();
            for at in evidence.answers {
                if let Some(Ok(renewed)) = all.get_mut(at) {
                    renewed.evidence = Some(seen.clone());
                }
            }
        }
        all
    }
}

impl Evidence {
    fn of((seen, answers): (Arc<DriverEvidence>, Vec<usize>)) -> Self {
        let unix_us = seen.time.and_then(|time| u64::try_from(time.as_micros()).ok());
        let (run, connection, position) = (seen.run.to_string(), seen.connection, seen.position);
        Self { answers, run, connection, position, unix_us }
    }

    fn for_driver(&self) -> Arc<DriverEvidence> {
        let mut seen = DriverEvidence::new(&*self.run, self.connection);
        seen.position = self.position;
        seen.time = self.unix_us.map(Duration::from_micros);
        Arc::new(seen)
    }
}

/// The answer to a release.
///
/// ```
/// # fn main() -> Result<(), serde_json::Error> {
/// use lockkit_http::wire::Released;
///
/// let it: Released = serde_json::from_str(r#"{"found": "nothing"}"#)?;
/// assert_eq!(it.ambiguous, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// Whether the claim was there.
    pub found: ReleaseResult,
    /// As in [`Grant`](super::Grant).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ambiguous: u32,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseResult {
    /// The claim, which was taken out.
    Claim,
    /// Other claims only.
    OthersOnly,
    /// An empty queue.
    Nothing,
}

impl Released {
    /// The answer to a release.
    pub fn of(answer: Attempted<DriverReleased>) -> Self {
        let found = match answer.result {
            DriverReleased::Removed => ReleaseResult::Claim,
            DriverReleased::NotFound => ReleaseResult::OthersOnly,
            DriverReleased::NoSuchLock => ReleaseResult::Nothing,
        };
        Self { found, ambiguous: answer.ambiguous }
    }

    /// The answer for a driver.
    pub fn for_driver(&self) -> Attempted<DriverReleased> {
        let answer = match self.found {
            ReleaseResult::Claim => DriverReleased::Removed,
            ReleaseResult::OthersOnly => DriverReleased::NotFound,
            ReleaseResult::Nothing => DriverReleased::NoSuchLock,
        };
        Attempted::after(self.ambiguous, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_answers_are_told_apart_by_their_fields() {
        let json = r#"{"acquired":[{"state":"waiting","ahead":2},
            {"code":"limit_mismatch","status":409,"detail":"","in_use":3,"asked":2},
            {"state":"held","token":"7","ttl_ms":1,"remaining_ms":1}],
            "released":[{"found":"claim"},
            {"code":"unavailable","status":503,"detail":"","ambiguous":2}]}"#;
        let BatchOutcome { acquired, released } = serde_json::from_str(json).unwrap();
        use OrProblem::{Answer, Problem};
        assert!(matches!(acquired[0], Answer(ClaimStatus::Waiting { ahead: 2, .. })));
        assert!(matches!(&acquired[1], Problem(it) if it.in_use == Some(3)));
        assert!(matches!(&acquired[2], Answer(ClaimStatus::Held(it)) if it.token.get() == 7));
        assert!(matches!(&released[0], Answer(it) if it.found == ReleaseResult::Claim));
        assert!(matches!(&released[1], Problem(it) if it.ambiguous == 2));
    }

    #[test]
    fn an_error_keeps_the_number_of_its_ambiguous_attempts() {
        let received = Moment::from_nanos(1_000_000_000_000);
        for ambiguous in [0, 1, 3] {
            let error = BatchError::refused(Error::retryable("memory", "away")).after(ambiguous);
            let outcome = DriverOutcome { released: vec![Err(error)], acquired: Vec::new() };
            let json = serde_json::to_string(&BatchOutcome::of(outcome, received)).unwrap();
            let BatchOutcome { mut released, .. } = serde_json::from_str(&json).unwrap();
            let error = released.remove(0).result().unwrap_err();
            assert_eq!(error.ambiguous, ambiguous, "{json}");
            assert!(error.error.is_retryable(), "{json}");
        }
    }
}
