//! `compare --lab`: on servers that are started for it, whose faults are staged too.

use std::sync::Arc;

use lockkit_conformance::Worker;
use lockkit_conformance::compare::{Counted, Subject};
use lockkit_lab::set_ups::{Connect, SET_UPS, STORES, SetUp};

use super::compare::{check_names, check_no_backend, conclude, connect, measured, over, progress};
use crate::args::BackendArgs;
use crate::args::compare::CompareArgs;
use crate::exit::{ExitError, code};
use crate::output;
use crate::system;

pub(crate) async fn compare(args: &CompareArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    check_no_backend(backend)?;
    let chosen = chosen(&args.subjects)?;
    let mut running = Vec::with_capacity(chosen.len());
    let mut subjects = Vec::with_capacity(chosen.len());
    for set_up in &chosen {
        progress(&format!("starting {}", set_up.name));
        let started = set_up.start().await;
        let started = started
            .map_err(|e| ExitError::new(code::OS, format!("cannot start {}: {e}", set_up.name)))?;
        let url = started.url().to_owned();
        let worker = Worker { program: system::this_program(), url: url.clone() };
        let counted = started.counted().map(|(url, proxy)| {
            let proxy = proxy.clone();
            let requests = Arc::new(move || proxy.counts().requests);
            Counted { connect: connect(url.clone()), requests }
        });
        let subject = Subject::new(set_up.name, set_up.about, connect(url), Some(worker)).await?;
        subjects.push(subject.counted_by(counted));
        running.push(started);
    }
    over();
    check_names(args, &subjects)?;
    let mut comparison = measured(args, &subjects).await?;
    // The trials start servers of their own, and are not to share the machine with idle ones.
    drop((subjects, running));
    let connect: Connect = Arc::new(|url| connect(url)());
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for (set_up, found) in chosen.iter().zip(&mut comparison.set_ups) {
        let trials = set_up.trials(&connect, Some(system::this_program()), &progress);
        found.reports.extend(trials.await);
    }
    std::panic::set_hook(hook);
    over();
    conclude(args, &comparison)
}

/// Those that are named, or all but stores for which there is a driver.
fn chosen(names: &[String]) -> Result<Vec<SetUp>, ExitError> {
    let missing = |set_up: &SetUp| lockkit::missing_feature(&format!("{}://", set_up.scheme()));
    if names.is_empty() {
        let (chosen, without): (Vec<_>, Vec<_>) =
            SET_UPS.into_iter().partition(|set_up| missing(set_up).is_none());
        for set_up in without {
            output::note(format!("{} is left out: this lockkit has no driver for it", set_up.name));
        }
        return Ok(chosen);
    }
    let find = |name: &String| {
        let all = || SET_UPS.into_iter().chain(STORES);
        let known = all().find(|set_up| set_up.is_called(name)).ok_or_else(|| {
            let all = all().map(|set_up| set_up.name).collect::<Vec<_>>().join(", ");
            ExitError::usage(format!("the lab has no {name:?}; it has {all}"))
        })?;
        if let Some(why) = known.missing() {
            return Err(ExitError::usage(format!("{}: {why}", known.name)));
        }
        match missing(&known) {
            None => Ok(known),
            Some(feature) => Err(ExitError::usage(format!(
                "this lockkit was built without {feature}: in a clone of its repository, run \
                 cargo install --path lockkit-cli --features lab,{feature}"
            ))),
        }
    };
    names.iter().map(find).collect()
}
