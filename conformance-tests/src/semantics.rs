//! Backends side by side: one line each, a column a question, as the docs print it. The answers come
//! out of `Capabilities`, and cases and trials hold drivers to them; this file has the questions, and
//! says who shows each answer.

use std::fmt::Write;
use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, LeaseClock, LeaseScope, TokenSource, WakeUp};
use serde::Serialize;

use crate::{Outcome, Report};

/// One column of the table.
#[derive(Clone, Copy)]
pub struct Question {
    /// Its heading.
    pub title: &'static str,
    /// The cases and trials, by their names or how these begin, which fail for a driver that does
    /// not do what it says here. None where nothing can show it from outside.
    pub shown_by: &'static [&'static str],
    answer: fn(&Capabilities) -> String,
}

/// What a run says of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// A case or trial that would fail for another answer passed.
    Shown,
    /// One failed.
    Refuted,
    /// None was run: the driver states it.
    Stated,
}

impl Mark {
    /// What these cases and trials, given by their names or how these begin, came to.
    pub fn of(names: &[&str], reports: &[Report]) -> Self {
        let shown = |report: &&Report| names.iter().any(|name| report.case.starts_with(name));
        let outcomes: Vec<_> = reports.iter().filter(shown).map(|r| &r.outcome).collect();
        match () {
            () if outcomes.iter().any(|o| matches!(o, Outcome::Failed(_))) => Self::Refuted,
            () if outcomes.contains(&&Outcome::Passed) => Self::Shown,
            () => Self::Stated,
        }
    }

    /// As it stands behind an answer in Markdown.
    pub fn text(self) -> &'static str {
        match self {
            Self::Shown => " ✓",
            Self::Refuted => " (**refuted**)",
            Self::Stated => "",
        }
    }
}

impl Question {
    /// What the driver answers.
    pub fn answer(&self, capabilities: &Capabilities) -> String {
        (self.answer)(capabilities)
    }
}

/// The columns.
pub const QUESTIONS: &[Question] = &[
    Question {
        title: "one lease keeps alive",
        shown_by: &[],
        answer: |c| lease_scope(c.lease_scope).to_owned(),
    },
    Question {
        title: "whose clock",
        shown_by: &["robust_08"],
        answer: |c| lease_clock(c.lease_clock).to_owned(),
    },
    Question {
        title: "least ttl",
        shown_by: &["lease_07", "lease_08"],
        answer: |c| match c.granularity {
            step if step >= Duration::from_secs(1) => {
                format!("{}, in steps of {}", span(c.min_ttl), span(step))
            }
            _ => span(c.min_ttl),
        },
    },
    Question {
        title: "free after its holder died",
        shown_by: &["lease_01", "lease_05", "order_04"],
        answer: |c| format!("its ttl + {}", span(c.expiry_slack)),
    },
    Question {
        title: "server restarts",
        shown_by: &["robust_03", "token_06"],
        answer: |c| c.guarantee(Fault::ServerRestarts).word().to_owned(),
    },
    Question {
        title: "failover",
        shown_by: &["robust_07"],
        // To a replica that lags, or to another leader of a majority: whatever there is.
        answer: |c| {
            let least = c.guarantee(Fault::Failover).min(c.guarantee(Fault::LeaderLost));
            least.word().to_owned()
        },
    },
    Question {
        title: "partition",
        shown_by: &["robust_06"],
        answer: |c| c.guarantee(Fault::Partition).word().to_owned(),
    },
    Question {
        title: "wake-up",
        shown_by: &["cost_05", "cost_06", "cost_07"],
        answer: |c| match c.wake_up {
            WakeUp::Poll { within } => format!("polls, within {}", span(within)),
            _ => "pushed".to_owned(),
        },
    },
    Question {
        title: "order",
        shown_by: &["order_01", "order_02", "order_05"],
        answer: |c| if c.fifo { "first come, first served" } else { "none" }.to_owned(),
    },
    Question {
        title: "tokens from",
        shown_by: &["token_02", "token_05", "token_07"],
        answer: |c| token_source(c.token_source).to_owned(),
    },
    Question {
        title: "round trips¹",
        shown_by: &["cost_01", "cost_02", "cost_03", "cost_04", "cost_06"],
        answer: round_trips,
    },
    Question {
        title: "operations a batch",
        shown_by: &["batch_01", "batch_02", "batch_05"],
        answer: |c| c.batches.operations.to_string(),
    },
];

/// The first two lines of the table.
pub fn heading() -> String {
    let titles: Vec<_> = QUESTIONS.iter().map(|question| question.title).collect();
    format!("| | {} |\n| --- |{}\n", titles.join(" | "), " --- |".repeat(titles.len()))
}

/// The line of one set-up, as its driver states it.
pub fn row(set_up: &str, capabilities: &Capabilities) -> String {
    table_row(set_up, capabilities, |_| "")
}

/// The same beside what came out of a run: an answer is marked when a case was run that shows it.
pub fn row_with(set_up: &str, capabilities: &Capabilities, reports: &[Report]) -> String {
    table_row(set_up, capabilities, |question| Mark::of(question.shown_by, reports).text())
}

/// What is below the table.
pub fn footnotes() -> String {
    let mut notes = "¹ Of an acquire, a release, a refused try, a renewal of everything that a \
                     process holds, and of the next one between its wake-up and its start.\n\n\
                     Shown by these cases and trials of the suite: "
        .to_owned();
    let shown: Vec<_> = QUESTIONS
        .iter()
        .filter(|question| !question.shown_by.is_empty())
        .map(|question| {
            let names: Vec<_> = question.shown_by.iter().map(|name| format!("`{name}`")).collect();
            format!("{} {}", question.title.trim_end_matches('¹'), names.join(" "))
        })
        .collect();
    let _ = writeln!(notes, "{}.", shown.join("; "));
    notes
}

fn table_row(
    set_up: &str,
    capabilities: &Capabilities,
    mark: impl Fn(&Question) -> &'static str,
) -> String {
    let mut line = format!("| **{set_up}** |");
    for question in QUESTIONS {
        let _ = write!(line, " {}{} |", (question.answer)(capabilities), mark(question));
    }
    line.push('\n');
    line
}

fn lease_scope(scope: LeaseScope) -> &'static str {
    match scope {
        LeaseScope::Claim => "one lock",
        LeaseScope::Shared | LeaseScope::Session => "a process's locks of one ttl",
        _ => "something else",
    }
}

fn lease_clock(clock: LeaseClock) -> &'static str {
    match clock {
        LeaseClock::Machine => "the machine's, monotonic",
        LeaseClock::Server => "the server's",
        LeaseClock::Leader => "the leader's, monotonic",
        LeaseClock::Members => "each member's",
        LeaseClock::Observers => "the other clients', monotonic",
        _ => "another",
    }
}

fn token_source(source: TokenSource) -> &'static str {
    match source {
        TokenSource::Counter => "a counter",
        TokenSource::ClockCounter => "a counter that begins at the clock",
        TokenSource::ClientClocks => "a counter, never behind the clients' clocks",
        TokenSource::Revision => "the number of the change",
        _ => "something else",
    }
}

fn round_trips(capabilities: &Capabilities) -> String {
    match capabilities.round_trips {
        Some(t) => {
            let all = [t.acquire, t.release, t.refused_try, t.renew, t.once_woken];
            all.map(|count| count.to_string()).join(" · ")
        }
        None => "no network".to_owned(),
    }
}

/// A span of time in the largest unit that does not round it.
pub(crate) fn span(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms if ms > 1000 => format!("{} s", time.as_secs_f64()),
        ms => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_marked_by_the_outcome_of_its_cases() {
        let capabilities = Capabilities::of("x");
        let report = |case, outcome| Report { group: "order", case, outcome, millis: 1 };
        let passed = [report("order_01_x", Outcome::Passed)];
        let line = row_with("x", &capabilities, &passed);
        assert!(line.contains("| first come, first served ✓ | a counter |"), "{line}");
        let failed = [passed[0].clone(), report("order_02_x", Outcome::Failed("so".into()))];
        let line = row_with("x", &capabilities, &failed);
        assert!(line.contains("| first come, first served (**refuted**) |"), "{line}");
    }

    #[test]
    fn a_span_is_shown_as_people_write_it() {
        let shown = [(50, "50 ms"), (2000, "2 s"), (1500, "1.5 s")];
        assert!(shown.iter().all(|(ms, text)| span(Duration::from_millis(*ms)) == *text));
    }
}
