//! The table of faults and promises, one line a set-up, as the docs print it: out of `Capabilities`,
//! which the judge of histories reads too.

use std::fmt::Write;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, Keeps};

/// The first two lines of the table.
pub fn heading() -> String {
    let titles: Vec<_> = Fault::ALL.into_iter().map(title).collect();
    format!("| | {} |\n| --- |{}\n", titles.join(" | "), " --- |".repeat(titles.len()))
}

/// The line of one set-up.
pub fn row(set_up: &str, capabilities: &Capabilities) -> String {
    let mut line = format!("| **{set_up}** |");
    for fault in Fault::ALL {
        let _ = write!(line, " {} |", word(capabilities.keeps(fault)));
    }
    line.push('\n');
    line
}

/// The cases and trials, by their names or how these begin, that hold a driver to its promise under
/// this fault.
pub fn shown_by(fault: Fault) -> &'static [&'static str] {
    match fault {
        Fault::ConnectionCut => &["robust_02"],
        Fault::Partition => &["robust_06"],
        Fault::ServerStandsStill => &["robust_04"],
        Fault::ClientStandsStill => &["robust_05"],
        Fault::ClientDies => &["lease_05", "order_04"],
        Fault::ServerRestarts => &["robust_03", "token_06"],
        Fault::DataLost => &["robust_10", "token_07"],
        Fault::Failover | Fault::LeaderLost => &["robust_07_the_leader_of_a_cluster"],
        Fault::ServerClockSteps => &["robust_08_the_clock_of_the_server"],
        Fault::ClientClockSteps => &["robust_08_the_wall_clock_of_a_client"],
        Fault::BrokenByForce => &["inspect_05"],
        // Drivers' own tests stage these (`old_data`, `rights`), or a storm does, or nothing.
        _ => &[],
    }
}

/// What is below the table.
pub const FOOTNOTE: &str = "² For longer than the ttl.\n";

/// What is left, in a word or two.
pub fn word(keeps: Keeps) -> &'static str {
    match keeps {
        Keeps::All => "all hold",
        Keeps::Tokens => "tokens",
        Keeps::Nothing => "none",
        Keeps::Impossible => "–",
    }
}

/// What a fault is called.
pub fn title(fault: Fault) -> &'static str {
    match fault {
        Fault::ConnectionCut => "a connection is cut",
        Fault::Partition => "no way to the server²",
        Fault::ServerStandsStill => "the server stands still²",
        Fault::ClientStandsStill => "a client stands still²",
        Fault::ClientDies => "a client dies",
        Fault::ServerRestarts => "the server is killed and restarted",
        Fault::WritesLost => "its last writes were not on disk",
        Fault::DataLost => "its data is lost or deleted",
        Fault::OlderDataRestored => "older data are put back",
        Fault::RightsWithdrawn => "a right is withdrawn",
        Fault::Failover => "a replica that lags takes over",
        Fault::SplitBrain => "and the old leader lives on",
        Fault::LeaderLost => "the leader of a majority is lost",
        Fault::ServerClockSteps => "the server's clock is stepped",
        Fault::ClientClockSteps => "a client's clock is stepped",
        Fault::BrokenByForce => "the lock is broken by force",
        _ => "another fault",
    }
}
