//! A comparison for a terminal, and as Markdown.

use std::fmt::Write;

use super::tables::{Table, without_notes};
use super::{Comparison, Difference};
use crate::Outcome;
use crate::promises;
use crate::semantics::Mark;

impl Comparison {
    /// For a terminal: columns as wide as they need to be.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for table in self.tables().into_iter().chain(self.money()) {
            let mut lines = vec![vec![table.title.to_owned()]];
            lines[0].extend(self.set_ups.iter().map(|set_up| set_up.name.clone()));
            for row in &table.rows {
                let mut line = vec![without_notes(row.title)];
                line.extend(row.answers.iter().map(|a| format!("{}{}", a.text, plain(a.mark))));
                lines.push(line);
            }
            aligned(&mut out, &lines);
            out.push('\n');
        }
        out.push_str(
            "✓ shown in this run; the rest is what the driver states. fencing only: two may hold at once, \
             the later one has the greater token.\nround trips: of an acquire, a release, a refused \
             try, a renewal of all claims, and of the next after its wake-up.\n",
        );
        self.failures(&mut out);
        let _ = writeln!(out, "{}, {}.", self.date, self.machine);
        out
    }

    /// For documents: a page with what changes for a move, if that was asked for, and three tables.
    pub fn markdown(&self, differences: Option<(&str, &str, &[Difference])>) -> String {
        let mut out = format!(
            "# Locks side by side\n\nMade by `lockkit compare` on {}: {}.\n\n",
            self.date, self.machine
        );
        for set_up in &self.set_ups {
            let _ = writeln!(out, "- **{}**: {}", set_up.name, set_up.location);
        }
        out.push('\n');
        for table in self.tables().into_iter().chain(self.money()) {
            let _ = writeln!(out, "## {}\n\n{}\n", table.title, table.note);
            out.push_str(&self.rows(&table));
            out.push('\n');
        }
        out.push_str(
            "¹ Of an acquire, a release, a refused try, a renewal of everything that a process holds, \
             and of the next one between its wake-up and its start. ",
        );
        let _ = writeln!(out, "{}", promises::FOOTNOTE);
        self.failures(&mut out);
        if let Some((from, to, all)) = differences {
            let _ = writeln!(out, "## From {from} to {to}\n\n{}", differences_markdown(all));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    fn rows(&self, table: &Table) -> String {
        let names: Vec<_> = self.set_ups.iter().map(|set_up| set_up.name.as_str()).collect();
        let mut out =
            format!("| | {} |\n| --- |{}\n", names.join(" | "), " --- |".repeat(names.len()));
        for row in &table.rows {
            let answers: Vec<_> =
                row.answers.iter().map(|a| format!("{}{}", a.text, a.mark.text())).collect();
            let _ = writeln!(out, "| **{}** | {} |", row.title, answers.join(" | "));
        }
        out
    }

    /// What did not hold.
    fn failures(&self, out: &mut String) {
        for set_up in &self.set_ups {
            for report in &set_up.reports {
                if let Outcome::Failed(why) = &report.outcome {
                    let why = why.lines().next().unwrap_or_default();
                    let _ = writeln!(out, "{}: {} FAILED: {why}\n", set_up.name, report.case);
                }
            }
        }
    }
}

/// Differences for a terminal: a line for each, and one for what to do about it.
pub fn differences_text(differences: &[Difference]) -> String {
    let mut out = String::new();
    for Difference { about, sentence, change } in differences {
        let _ = writeln!(out, "{about}\n  {sentence}");
        if let Some(change) = change {
            let _ = writeln!(out, "  → {change}");
        }
    }
    out
}

/// Differences as a list in Markdown.
fn differences_markdown(differences: &[Difference]) -> String {
    let mut out = String::new();
    for Difference { about, sentence, change } in differences {
        let change = change.as_ref().map_or(String::new(), |change| format!(" *{change}*"));
        let _ = writeln!(out, "- **{about}.** {sentence}{change}");
    }
    out
}

fn plain(mark: Mark) -> &'static str {
    match mark {
        Mark::Refuted => " REFUTED",
        other => other.text(),
    }
}

/// A title without the mark of a footnote.
fn aligned(out: &mut String, lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
