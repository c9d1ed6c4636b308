//! Backends side by side, on the user's own servers: what their drivers state, what the suite's cases
//! have just shown of it, and what was measured in turns. It reads and measures; what is kept
//! under faults it takes from the drivers, since it never harms a server.
//!
//! ```no_run
//! use lockkit_conformance::compare::{Comparison, Effort, Subject};
//!
//! # async fn demo(redis: Subject, zookeeper: Subject) -> Result<(), lockkit_core::Error> {
//! let effort = Effort::default();
//! let found = Comparison::of(&[redis, zookeeper], effort, &|step| eprintln!("{step}")).await?;
//! println!("{}", found.text());
//! for difference in found.differences("redis", "zookeeper").unwrap_or_default() {
//!     println!("{difference}");
//! }
//! # Ok(())
//! # }
//! ```

mod charts;
mod differences;
mod html;
mod measure;
mod money;
mod print;
mod subject;
mod tables;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, StreamExt, stream};
use lockkit_core::capabilities::Fault;
use lockkit_core::promises::Promises;
use lockkit_core::{Capabilities, Error};
use serde::Serialize;

pub use differences::Difference;
pub use measure::{HoldSpan, Hot, Measured};
pub use print::differences_text;
pub use subject::{Connector, Counted, Subject};
pub use tables::{Table, TableRow, TableValue, row_titles};

use crate::semantics::QUESTIONS;
use crate::{CASES, Case, Report, promises, run};

/// What was found out about several set-ups.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The day, such as `2026-11-22` (UTC).
    pub date: String,
    /// The machine that the clients ran on, in words.
    pub machine: String,
    /// The set-ups, in the order in which they were named.
    pub set_ups: Vec<ComparedSetUp>,
}

/// One set-up.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedSetUp {
    /// What it is called in the tables.
    pub name: String,
    /// Where it is, without secrets.
    pub location: String,
    /// What its driver states.
    pub capabilities: Capabilities,
    /// What is kept under each fault as its servers were set up, and why.
    pub promises: Promises,
    /// The cases and trials that were run, and how each ended.
    pub reports: Vec<Report>,
    /// What was measured.
    pub measured: Measured,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Runs every case of the suite, not only those that show an answer of the tables.
    pub whole_suite: bool,
    /// How often each measurement takes its turn; the median counts.
    pub rounds: u32,
    /// How long one turn of a rate lasts.
    pub turn: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self { whole_suite: false, rounds: 5, turn: Duration::from_millis(400) }
    }
}

/// Returns when all is to end.
type StopSignal = Shared<BoxFuture<'static, ()>>;

/// So many cases of one set-up run at the same time.
const AT_ONCE: usize = 4;

impl Comparison {
    /// Runs cases against each, then measures all of them in turns. `say` gets a line for each step.
    ///
    /// Everything happens in namespaces of its own, which are cleaned up: no other lock is touched,
    /// and nothing is done to a server but locking.
    ///
    /// # Errors
    /// When a set-up cannot be reached, or fails while it is measured.
    ///
    /// # Cancel safety
    /// Dropping it leaves what was held until its leases end, 5 minutes at most.
    pub async fn of(
        subjects: &[Subject],
        effort: Effort,
        say: &(dyn Fn(&str) + Sync),
    ) -> Result<Self, Error> {
        let found = Self::until(subjects, effort, say, std::future::pending()).await?;
        found.ok_or_else(|| Error::config("interrupted"))
    }

    /// As [`of`](Self::of), but gives up and cleans up when `stop` returns: then there is none.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    ///
    /// # Cancel safety
    /// As for [`of`](Self::of).
    pub async fn until(
        subjects: &[Subject],
        effort: Effort,
        say: &(dyn Fn(&str) + Sync),
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Option<Self>, Error> {
        let stop: StopSignal = stop.boxed().shared();
        let mut set_ups = Vec::with_capacity(subjects.len());
        for subject in subjects {
            let reports = subject.cases(effort, say, &stop).await;
            if stop.peek().is_some() {
                return Ok(None);
            }
            set_ups.push((subject, reports));
        }
        let Some(measured) = measure::in_turns(subjects, effort, say, stop).await? else {
            return Ok(None);
        };
        let set_ups = set_ups.into_iter().zip(measured).map(|((subject, reports), measured)| {
            let (name, place) = (subject.name().to_owned(), subject.location().to_owned());
            let (capabilities, promises) = (*subject.capabilities(), subject.promises().clone());
            ComparedSetUp { name, location: place, capabilities, promises, reports, measured }
        });
        Ok(Some(Self { date: today(), machine: machine(), set_ups: set_ups.collect() }))
    }

    /// The set-up of this name, whatever its case, spaces and signs.
    pub fn set_up(&self, name: &str) -> Option<&ComparedSetUp> {
        self.set_ups.iter().find(|set_up| same_name(&set_up.name, name))
    }

    /// What changes for who moves from one set-up to another; `None` when there is none of that
    /// name.
    pub fn differences(&self, from: &str, to: &str) -> Option<Vec<Difference>> {
        Some(differences::between(self.set_up(from)?, self.set_up(to)?))
    }
}

impl Subject {
    /// Whether this is its name, whatever its case, spaces and signs.
    pub fn is_called(&self, name: &str) -> bool {
        same_name(self.name(), name)
    }

    async fn cases(
        &self,
        effort: Effort,
        say: &(dyn Fn(&str) + Sync),
        stop: &StopSignal,
    ) -> Vec<Report> {
        let chosen: Vec<_> = CASES.iter().filter(|c| effort.whole_suite || shows(c.name)).collect();
        let total = chosen.len();
        let mut running = stream::iter(chosen)
            .map(|case: &'static Case| run::case_until(self.harness(), case, stop.clone()))
            .buffered(AT_ONCE);
        let mut reports = Vec::with_capacity(total);
        while let Some(report) = running.next().await {
            if stop.peek().is_some() {
                break;
            }
            say(&format!("{}: case {} of {total}", self.name(), reports.len() + 1));
            reports.push(report);
        }
        reports
    }
}

/// Whether a case or trial of this name shows an answer of the tables.
pub fn shows(name: &str) -> bool {
    let semantics = QUESTIONS.iter().flat_map(|question| question.shown_by);
    let faults = Fault::ALL.into_iter().flat_map(promises::shown_by);
    semantics.chain(faults).any(|begins| name.starts_with(begins))
}

/// Whether two names are the same, whatever their case, spaces and signs.
pub fn same_name(one: &str, other: &str) -> bool {
    plain(one) == plain(other)
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = match cores {
        1 => "one core".to_owned(),
        2 => "two cores".to_owned(),
        many => format!("{many} cores"),
    };
    format!("{cores}, {} on {}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Today in the calendar (https://howardhinnant.github.io/date_algorithms.html#civil_from_days).
fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    civil(since.as_secs() / 86_400)
}

fn civil(days: u64) -> String {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153; // March is the first month
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_since_1970_are_dates() {
        let known = [(0, "1970-01-01"), (11_016, "2000-02-29"), (20_513, "2026-03-01")];
        assert!(known.iter().all(|(days, date)| civil(*days) == *date), "{}", civil(20_513));
    }

    #[test]
    fn a_name_is_found_however_it_is_written() {
        assert!(same_name("Redis Cluster", "redis-cluster"));
        assert!(!same_name("Redis", "redis-cluster"));
    }

    #[test]
    fn the_cases_that_show_an_answer_are_chosen() {
        assert!(shows("order_02_a_try_never_overtakes_a_queue"));
        assert!(!shows("names_04_case_matters"));
    }
}
