//! A comparison as a page: one file that asks no network, with its charts inside.

use std::fmt::Write;

use lockkit_core::capabilities::{Fault, Guarantee};

use super::charts::{self, Bar, text};
use super::tables::{Table, TableRow, rate, seconds, without_notes};
use super::{Comparison, Difference};
use crate::Outcome;
use crate::semantics::Mark;

impl Comparison {
    /// The page. `differences` of two set-ups stand first, under what they are a move from and to.
    pub fn html(&self, differences: Option<(&str, &str, &[Difference])>) -> String {
        let names: Vec<_> = self.set_ups.iter().map(|set_up| text(&set_up.name)).collect();
        let mut out = String::new();
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>lockkit compare: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n\
             <h1>Locks side by side</h1>\n<p class=\"soft\">{}: {}. Made by <code>lockkit \
             compare</code>.</p>\n",
            names.join(", "),
            include_str!("page.css"),
            text(&self.date),
            text(&self.machine)
        );
        out.push_str("<ul>\n");
        for set_up in &self.set_ups {
            let (name, place) = (text(&set_up.name), text(&set_up.location));
            let _ = writeln!(out, "<li><strong>{name}</strong>: {place}</li>");
        }
        out.push_str("</ul>\n");
        if let Some((from, to, differences)) = differences {
            changes(&mut out, from, to, differences);
        }
        self.failures_list(&mut out);
        let [semantics, measured, faults] = self.tables();
        section(&mut out, &measured);
        self.bars(&mut out);
        section(&mut out, &faults);
        self.table(&mut out, &faults, |column, at| {
            class(self.set_ups[column].promises.guarantee(Fault::ALL[at]))
        });
        section(&mut out, &semantics);
        self.table(&mut out, &semantics, |_, _| "");
        if let Some(money) = self.money() {
            section(&mut out, &money);
            self.table(&mut out, &money, |_, _| "");
        }
        out.push_str(
            "<p class=\"soft\">Round trips: of an acquire, a release, a refused try, a renewal of \
             everything that a process holds, and of the next one between its wake-up and its \
             start.</p>\n",
        );
        self.timelines(&mut out);
        out.push_str("</main>\n</body>\n</html>\n");
        out
    }

    fn bars(&self, out: &mut String) {
        out.push_str("<div class=\"charts\">\n");
        let bars = |figure: fn(&super::Measured) -> f64, shown: fn(f64) -> String| {
            let bar = |set_up: &super::ComparedSetUp| {
                let value = figure(&set_up.measured);
                Bar { name: set_up.name.clone(), value, label: shown(value) }
            };
            self.set_ups.iter().map(bar).collect::<Vec<_>>()
        };
        for (title, better, bars, tick) in [
            (
                "Lock and release, 1 task",
                "longer is better",
                bars(|m| m.one_task, rate),
                rate as fn(f64) -> String,
            ),
            ("Lock and release, 64 tasks", "longer is better", bars(|m| m.many_tasks, rate), rate),
            (
                "Hand-over to the next waiter",
                "shorter is better",
                bars(|m| m.hand_over, seconds),
                seconds,
            ),
            (
                "A dead holder's lock is free, after its ttl",
                "shorter is better",
                bars(|m| (m.dead_freed - m.dead_ttl).max(0.0), seconds),
                seconds,
            ),
        ] {
            let _ = writeln!(
                out,
                "<figure><figcaption><strong>{title}</strong> <span>{better}; logarithmic \
                 scale</span></figcaption>\n{}</figure>",
                charts::bars(title, &bars, tick)
            );
        }
        out.push_str("</div>\n");
    }

    fn table(&self, out: &mut String, table: &Table, class: impl Fn(usize, usize) -> &'static str) {
        out.push_str("<table>\n<thead><tr><td></td>");
        for set_up in &self.set_ups {
            let _ = write!(out, "<th scope=\"col\">{}</th>", text(&set_up.name));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for (at, TableRow { title, answers }) in table.rows.iter().enumerate() {
            let _ = write!(out, "<tr><th scope=\"row\">{}</th>", text(&without_notes(title)));
            for (column, answer) in answers.iter().enumerate() {
                let name = text(&self.set_ups[column].name);
                let mark = match answer.mark {
                    Mark::Shown => " <b title=\"shown in this run\">✓</b>",
                    Mark::Refuted => " <b class=\"refuted\">refuted</b>",
                    Mark::Stated => "",
                };
                let class = class(column, at);
                let words = text(&answer.text);
                let _ = write!(
                    out,
                    "<td class=\"{class}\" data-name=\"{name}\"><span>{words}{mark}</span></td>"
                );
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table>\n");
    }

    fn timelines(&self, out: &mut String) {
        out.push_str(
            "<h2>One lock, four tasks</h2>\n<p>A short run in which four tasks of two programs \
             contend for one lock, five turns each, 5 ms of work a turn: one row a task, thin while \
             it waits, thick while it holds. Point at a bar for its token.</p>\n\
             <div class=\"charts\">\n",
        );
        for set_up in &self.set_ups {
            let turns = &set_up.measured.turns;
            let lasts = turns.iter().map(|turn| turn.released).fold(0.0, f64::max);
            let _ = writeln!(
                out,
                "<figure><figcaption><strong>{}</strong> <span>{} turns in {}</span></figcaption>\n\
                 {}</figure>",
                text(&set_up.name),
                turns.len(),
                seconds(lasts),
                charts::timeline(&set_up.name, turns, lasts)
            );
        }
        out.push_str("</div>\n");
    }

    fn failures_list(&self, out: &mut String) {
        for set_up in &self.set_ups {
            for report in &set_up.reports {
                if let Outcome::Failed(why) = &report.outcome {
                    let _ = writeln!(
                        out,
                        "<p class=\"refuted\">{}: <code>{}</code> failed: {}</p>",
                        text(&set_up.name),
                        report.case,
                        text(why.lines().next().unwrap_or_default())
                    );
                }
            }
        }
    }
}

fn section(out: &mut String, table: &Table) {
    let _ = writeln!(out, "<h2>{}</h2>\n<p>{}</p>", table.title, text(&table.note));
}

fn changes(out: &mut String, from: &str, to: &str, differences: &[Difference]) {
    let _ = writeln!(out, "<h2>From {} to {}</h2>\n<dl>", text(from), text(to));
    for Difference { about, sentence, change } in differences {
        let _ = write!(out, "<dt>{about}</dt><dd>{}", prose(sentence));
        if let Some(change) = change {
            let _ = write!(out, "<p class=\"change\">{}</p>", prose(change));
        }
        out.push_str("</dd>\n");
    }
    out.push_str("</dl>\n");
}

fn class(guarantee: Option<Guarantee>) -> &'static str {
    match guarantee {
        Some(Guarantee::All) => "all",
        Some(Guarantee::Tokens) => "tokens",
        Some(Guarantee::Nothing) => "none",
        Some(Guarantee::Impossible) | None => "never",
    }
}

/// Text in which `code` is marked.
fn prose(raw: &str) -> String {
    let parts = raw.split('`').map(text).enumerate();
    let marked = |(at, part)| match at % 2 {
        0 => part,
        _ => format!("<code>{part}</code>"),
    };
    parts.map(marked).collect()
}
