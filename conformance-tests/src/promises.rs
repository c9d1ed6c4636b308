//! The table of faults and promises, as the docs print it: out of `Capabilities`, which the judge
//! of histories reads too.

use std::fmt::Write;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, Keeps};

/// A Markdown table: a row a fault, a column a backend.
pub fn markdown(backends: &[&Capabilities]) -> String {
    let mut table = String::from("| fault |");
    for backend in backends {
        let _ = write!(table, " {} |", backend.backend);
    }
    table.push_str("\n| --- |");
    table.push_str(&" --- |".repeat(backends.len()));
    table.push('\n');
    for fault in Fault::ALL {
        let _ = write!(table, "| {} |", describe(fault));
        for backend in backends {
            let _ = write!(table, " {} |", word(backend.keeps(fault)));
        }
        table.push('\n');
    }
    table
}

fn word(keeps: Keeps) -> &'static str {
    match keeps {
        Keeps::All => "all hold",
        Keeps::Tokens => "exclusion may break, tokens grow",
        Keeps::Nothing => "both may break",
        Keeps::Impossible => "cannot happen",
    }
}

fn describe(fault: Fault) -> &'static str {
    match fault {
        Fault::ConnectionCut => "a connection is cut, an answer is lost",
        Fault::Partition => "a client cannot reach the server for longer than the ttl",
        Fault::ServerStandsStill => "the server stands still for longer than the ttl",
        Fault::ClientStandsStill => "a client stands still for longer than the ttl",
        Fault::ClientDies => "a client dies",
        Fault::ServerRestarts => "the server is killed and started again with its data",
        Fault::WritesLost => "the machine dies with the last writes not on disk",
        Fault::DataLost => "the data is lost, or deleted while in use",
        Fault::Failover => "a replica that lags takes over",
        Fault::LeaderLost => "the leader of a consensus cluster is killed, frozen or cut off",
        Fault::ServerClockSteps => "the server's clock is stepped",
        Fault::ClientClockSteps => "a client's wall clock is stepped",
        Fault::BrokenByForce => "somebody breaks the lock by force",
        _ => "another fault",
    }
}
