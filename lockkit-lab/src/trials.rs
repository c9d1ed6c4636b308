//! Trials: the cases that count messages on the wire (cost) and those in which a server or the
//! network misbehaves (faults). Plain functions over a [`TrialSetup`], which has a real server and a
//! proxy; this file has the one list of them, and runs them.
//!
//! A trial reads what the driver's [`Capabilities`](lockkit_core::Capabilities) say that it keeps
//! under a fault, and holds it to exactly that; afterwards the lock works again, and nothing is
//! left. What cannot be staged is reported as not applicable, with the reason.

#![allow(missing_docs, reason = "a trial's name is the sentence that it proves")]

/// Says what a trial saw, where it runs as a test: a program's stdout is the program's own.
macro_rules! remark {
    ($($words:tt)*) => {
        if $crate::trials::runs_as_test() {
            println!($($words)*);
        }
    };
}

pub mod clusters;
pub mod cost;
pub mod data;
pub mod many_waiters;
pub mod members;
pub mod messages;
pub mod moves;
mod operations;
pub mod outages;
pub mod registers;
mod scene;
mod servers;
mod stage;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

pub use servers::TrialServers;
pub use stage::{Ground, TrialSetup};

use crate::Deployment;
use lockkit_conformance::CaseKind;
use lockkit_conformance::run::{Outcome, Report, message};

/// Why a trial does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotApplicable(pub String);

impl NotApplicable {
    fn because<T>(why: impl Into<String>) -> Result<T, Self> {
        Err(Self(why.into()))
    }
}

/// What a trial returns; it panics when what it proves does not hold.
pub type TrialResult = Result<(), NotApplicable>;

/// One trial.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Its id and the sentence that it proves.
    pub name: &'static str,
    /// `cost`, `robust`, `loss` …
    pub group: &'static str,
    /// Cost or fault.
    pub kind: CaseKind,
    /// What it stands on.
    pub ground: Ground,
    /// The trial.
    pub run: fn(TrialSetup) -> Pin<Box<dyn Future<Output = TrialResult> + Send>>,
}

impl Trial {
    /// The trial of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TRIALS.iter().find(|trial| trial.name == name)
    }
}

/// No trial takes longer than this.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs one trial on servers that are started for it, or shared where it disturbs no other test.
///
/// # Cancel safety
/// Dropping it ends the trial's own servers.
pub async fn trial(site: Arc<dyn Deployment>, trial: &'static Trial) -> Report {
    let start = Instant::now();
    let outcome = match TrialSetup::set(site, trial.ground).await {
        Ok(stage) => {
            let context = stage.context().clone();
            let run = tokio::time::timeout(LONGEST, (trial.run)(stage));
            let ended = AssertUnwindSafe(run).catch_unwind().await;
            context.clean_up().await;
            match ended {
                Ok(Ok(Ok(()))) => Outcome::Passed,
                Ok(Ok(Err(NotApplicable(why)))) => Outcome::NotApplicable(why),
                Ok(Err(_)) => Outcome::Failed(format!("took longer than {LONGEST:?}")),
                Err(panic) => Outcome::Failed(message(&*panic)),
            }
        }
        Err(why) => Outcome::Failed(why),
    };
    let millis = start.elapsed().as_millis() as u64;
    Report { group: trial.group, case: trial.name, outcome, millis }
}

static AS_TEST: AtomicBool = AtomicBool::new(false);

fn runs_as_test() -> bool {
    AS_TEST.load(Ordering::Relaxed)
}

/// Runs one trial as a test, in a runtime of its own. What does not apply is printed and passes.
///
/// # Panics
/// When the trial fails, or there is none of this name.
pub fn as_test(name: &str, site: Arc<dyn Deployment>) {
    AS_TEST.store(true, Ordering::Relaxed);
    let found = Trial::named(name).expect("the list has this trial");
    let runtime = lockkit_conformance::run::runtime(lockkit_conformance::Time::Real);
    let report = runtime.block_on(trial(site, found));
    runtime.shutdown_background();
    match report.outcome {
        Outcome::Passed => {}
        Outcome::NotApplicable(why) => println!("not applicable: {why}"),
        Outcome::Failed(why) => panic!("{name}: {why}"),
    }
}

/// Hands the list of trials to another macro of this crate, behind the tokens given.
#[doc(hidden)]
#[macro_export]
macro_rules! __every_trial {
    ($then:ident $($args:tt)*) => {
        $crate::$then! { [$($args)*]
            cost cost Cost {
                cost_01_a_free_lock_is_acquired_within_the_budget: Shared,
                cost_02_a_release_without_waiters_is_within_the_budget: Shared,
                cost_03_a_refused_try_is_within_the_budget: Shared,
                cost_04_a_thousand_claims_are_renewed_in_one_round_trip: Own,
                cost_05_a_thousand_waiters_are_silent: Own,
                cost_06_the_next_knows_by_one_message: Shared,
                cost_07_a_release_sends_one_wake_up: Shared,
            }
            many_waiters cost Cost {
                cost_08_many_waiters_at_one_name_delay_no_other: Own,
            }
            messages robust Fault {
                robust_01_an_answer_is_lost_after_the_server_acted_at_any_message: Own,
                robust_02_the_connection_is_cut_at_any_message: Own,
            }
            outages robust Fault {
                robust_03_the_server_is_killed_and_restarted: Own,
                robust_04_the_server_is_paused: Own,
                robust_05_a_client_is_paused: Own,
                robust_06_a_client_is_cut_off_for_longer_than_its_lease: Own,
            }
            clusters robust Fault {
                robust_07_the_leader_of_a_cluster_is_killed: Nothing,
                robust_07_the_leader_of_a_cluster_falls_silent: Nothing,
                robust_07_a_follower_is_cut_off_from_its_leader: Nothing,
                robust_07_a_leader_is_cut_off_from_the_others: Nothing,
                robust_07_a_leader_is_cut_off_and_the_others_see_it_first: Nothing,
            }
            moves robust Fault {
                robust_07_a_lock_moves_to_another_server: Own,
            }
            data robust Fault {
                robust_08_the_clock_of_the_server_jumps: OwnWithClock,
                robust_08_the_wall_clock_of_a_client_jumps: Own,
                robust_09_a_refusal_is_a_clear_error: Own,
                robust_10_data_is_deleted_under_a_lock: Own,
            }
            outages loss Fault {
                loss_03_a_guard_ends_by_itself_when_the_server_is_gone: Own,
            }
            outages token Fault {
                token_06_tokens_grow_across_a_restart: Own,
                token_07_tokens_grow_although_all_data_was_lost: Own,
            }
            moves register Fault {
                register_04_a_register_is_whole_while_it_moves: Own,
            }
            registers register Fault {
                register_04_tokens_are_remembered_across_a_restart: Own,
                register_05_changed_survives_a_cut_connection: Shared,
                register_06_a_write_whose_answer_was_lost_is_distinguished_from_a_conflict: Shared,
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __table_of_trials {
    ([] $($module:ident $group:ident $kind:ident { $($trial:ident: $ground:ident,)* })*) => {
        /// Every trial.
        pub const TRIALS: &[Trial] = &[$($(Trial {
            name: stringify!($trial),
            group: stringify!($group),
            kind: CaseKind::$kind,
            ground: Ground::$ground,
            run: |stage| Box::pin($module::$trial(stage)),
        },)*)*];
    };
}

crate::__every_trial!(__table_of_trials);

#[doc(hidden)]
#[macro_export]
macro_rules! __tests_of_trials {
    ([$site:expr] $($m:ident $g:ident $k:ident { $($trial:ident: $ground:ident,)* })*) => {
        $($(
            #[test]
            fn $trial() {
                $crate::trials::as_test(stringify!($trial), ::std::sync::Arc::new($site));
            }
        )*)*
    };
}

/// Makes one test of every trial, on the [`Deployment`](crate::Deployment) that the expression gives.
#[macro_export]
macro_rules! trials {
    ($site:expr) => {
        $crate::__every_trial! { __tests_of_trials $site }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_is_named_after_its_group_and_stands_once() {
        let mut names = std::collections::HashSet::new();
        for trial in TRIALS {
            let number = trial.name.strip_prefix(trial.group).and_then(|rest| rest.get(1..3));
            assert!(number.is_some_and(|n| n.parse::<u8>().is_ok()), "{}", trial.name);
            assert!(names.insert(trial.name), "{}", trial.name);
        }
    }
}
