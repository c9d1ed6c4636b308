//! The tables of faults and promises, as the docs print them: out of `Capabilities`, which the judge
//! of histories reads too.

use std::fmt::Write;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::{Fault, Guarantee};

/// A set-up's name, and what its driver states.
pub type Column<'a> = (&'a str, &'a Capabilities);

/// The table: a row for each fault, a column for each set-up.
pub fn table(set_ups: &[Column<'_>]) -> String {
    let rows = Fault::ALL.into_iter().map(|fault| {
        (fault.title().to_owned(), set_ups.iter().map(|(_, c)| c.guarantee(fault)).collect())
    });
    printed(set_ups.iter().map(|(name, _)| *name), rows)
}

/// The same table in fewer lines: neighbouring set-ups with equal answers share a column, and faults
/// with equal answers a row.
pub fn short_table(set_ups: &[Column<'_>]) -> String {
    let all = |c: &Capabilities| Fault::ALL.map(|fault| c.guarantee(fault));
    let groups: Vec<_> = set_ups.chunk_by(|(_, a), (_, b)| all(a) == all(b)).collect();
    let names = groups.iter().map(|group| {
        let names: Vec<_> = group.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    });
    let mut rows: Vec<(String, Vec<Guarantee>)> = Vec::new();
    for fault in Fault::ALL {
        let kept: Vec<_> = groups.iter().map(|group| group[0].1.guarantee(fault)).collect();
        match rows.iter_mut().find(|(_, same)| *same == kept) {
            Some((titles, _)) => titles.extend(["; ", fault.title()]),
            None => rows.push((fault.title().to_owned(), kept)),
        }
    }
    printed(names, rows)
}

/// The table of the other promises: order, no leak, no silent loss. A row for each fault and each answer
/// of the first table to it. What the words say is stated, not shown by a run of its own.
pub fn others_table(set_ups: &[Column<'_>]) -> String {
    let mut out = "| | on | first come, first served | a lock is free | a guard turns invalid |\n\
                   | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for fault in Fault::ALL {
        let mut rows: Vec<([&str; 3], Vec<&str>)> = Vec::new();
        for (name, c) in set_ups.iter().filter(|(_, c)| c.guarantee(fault) != Guarantee::Impossible)
        {
            let [order, free, invalid] = others(fault, c.guarantee(fault));
            let answers = [if c.fifo { order } else { "no order at any time" }, free, invalid];
            match rows.iter_mut().find(|(same, _)| *same == answers) {
                Some((_, names)) => names.push(name),
                None => rows.push((answers, vec![name])),
            }
        }
        for ([order, free, invalid], names) in rows {
            let (title, names) = (fault.title(), names.join("; "));
            let _ = writeln!(out, "| **{title}** | {names} | {order} | {free} | {invalid} |");
        }
    }
    out
}

/// What is left of order, no leak and no silent loss, where this is left of exclusion and tokens.
fn others(fault: Fault, guarantee: Guarantee) -> [&'static str; 3] {
    const FREE: &str = "as always";
    const BEFORE: &str = "before another can hold";
    const NEXT: &str = "at its next renewal";
    match fault {
        // The leases of those that wait end, too; they ask again.
        Fault::ServerPaused => ["not kept: all waiters ask again", FREE, BEFORE],
        Fault::Partition | Fault::ClientPaused if guarantee == Guarantee::All => {
            ["kept; a client that is away for its TTL loses its place", FREE, BEFORE]
        }
        Fault::BrokenByForce => ["kept", FREE, NEXT],
        Fault::ClientMachinePaused if guarantee < Guarantee::All => {
            ["kept; a client that is away for its TTL loses its place", FREE, NEXT]
        }
        Fault::ServerClockSteps | Fault::OtherClockTakesOver | Fault::ServerClockSlewedMore
            if guarantee < Guarantee::All =>
        {
            let free = "sooner, or within its TTL after the next operation";
            ["not kept where leases end early", free, NEXT]
        }
        Fault::SplitBrain if guarantee < Guarantee::All => {
            ["not kept", "at each leader by itself", "when its client hears of the new leader"]
        }
        _ if guarantee < Guarantee::All => {
            let free = "as always; one whose release was forgotten, after its lease";
            ["not kept for what was forgotten", free, NEXT]
        }
        _ => ["kept", FREE, BEFORE],
    }
}

fn printed(
    names: impl IntoIterator<Item = impl AsRef<str>>,
    rows: impl IntoIterator<Item = (String, Vec<Guarantee>)>,
) -> String {
    let (mut out, mut rule) = ("| |".to_owned(), "| --- |".to_owned());
    for name in names {
        let _ = write!(out, " {} |", name.as_ref());
        rule.push_str(" --- |");
    }
    let _ = writeln!(out, "\n{rule}");
    for (title, kept) in rows {
        let words: Vec<_> = kept.into_iter().map(Guarantee::word).collect();
        let _ = writeln!(out, "| **{title}** | {} |", words.join(" | "));
    }
    out
}

/// The cases and trials, by their names or how these begin, that hold a driver to its promise under
/// this fault.
pub fn shown_by(fault: Fault) -> &'static [&'static str] {
    match fault {
        Fault::ConnectionCut => &["robust_02"],
        Fault::Partition => &["robust_06"],
        Fault::ServerPaused => &["robust_04"],
        Fault::ClientPaused => &["robust_05"],
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
pub const FOOTNOTE: &str = "² For longer than the ttl. ³ With all data; exclusion is open by what the \
    clocks differ beyond the margin, until the new server's first answer.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_table_says_of_each_fault_and_set_up_what_the_long_one_says() {
        let (mut a, mut b) = (Capabilities::of("a"), Capabilities::of("b"));
        a.faults =
            &[(Fault::DataLost, Guarantee::Tokens), (Fault::BrokenByForce, Guarantee::Tokens)];
        b.faults =
            &[(Fault::DataLost, Guarantee::Nothing), (Fault::BrokenByForce, Guarantee::Tokens)];
        let short = short_table(&[("one", &a), ("two", &a), ("three", &b)]);
        let lines: Vec<_> = short.lines().collect();
        assert_eq!(lines[..2], ["| | one, two | three |", "| --- | --- | --- |"]);
        let row = |fault: Fault| {
            let named = |row: &&&str| row.contains(fault.title());
            lines[2..].iter().find(named).map(|row| row.rsplit("** ").next().unwrap())
        };
        for fault in Fault::ALL {
            let [a, b] = [&a, &b].map(|c| c.guarantee(fault).word());
            assert_eq!(row(fault), Some(format!("| {a} | {b} |").as_str()), "{fault:?}");
        }
        assert_eq!(lines.len(), 2 + 3, "three kinds of answers:\n{short}");
    }
}
