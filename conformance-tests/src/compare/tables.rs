//! What was found, as tables: a row a question, a column a set-up. Every form of a comparison shows
//! these rows, in this order.

use std::borrow::Cow;

use lockkit_core::capabilities::{Fault, Guarantee};

use super::measure::Hot;
use super::money;
use super::{Comparison, Measured};
use crate::promises;
use crate::semantics::{Mark, QUESTIONS};

/// One of the tables.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its heading.
    pub title: &'static str,
    /// What is above it.
    pub note: Cow<'static, str>,
    /// Its rows.
    pub rows: Vec<TableRow>,
}

/// A question, and what each set-up answers.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// The question.
    pub title: &'static str,
    /// One for each set-up.
    pub answers: Vec<TableValue>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct TableValue {
    /// In words.
    pub text: String,
    /// What this run says of it.
    pub mark: Mark,
}

const SEMANTICS: &str = "What a lock means. ✓: shown by cases of this run, which fail for any other \
    answer; no mark: stated by the driver.";
const MEASURED: &str = "Measured in this run, in turns; medians. Compare figures of one run only: \
    another machine, network or disk has others.";
const FAULTS: &str = "What is left of exclusion and growing tokens under each fault, as these servers \
    are set up (`lockkit doctor --promises` gives the reasons). exclusion + fencing: both; fencing only: two may hold at \
    once, the later one has the greater token; none: neither is promised; –: it cannot happen; unknown: \
    a setting decides that cannot be read. ✓: staged in this run.";

/// How a figure is shown.
type Figure = fn(&Measured) -> String;

const FIGURES: [(&str, Figure); 5] = [
    ("lock and release, 1 task", |m| rate(m.one_task)),
    ("lock and release, 64 tasks", |m| rate(m.many_tasks)),
    ("one lock, 64 waiters", |m| {
        let Hot { rate: hand_overs, p50, p99, requests } = m.hot;
        let times = format!("{}; p50 {}, p99 {}", rate(hand_overs), seconds(p50), seconds(p99));
        match requests {
            Some(requests) => format!("{times}; {requests:.2} requests each"),
            None => times,
        }
    }),
    ("hand-over to the next waiter", |m| seconds(m.hand_over)),
    ("a dead holder's lock is free", |m| {
        let late = (m.dead_freed - m.dead_ttl).max(0.0);
        format!("{} after a ttl of {}", seconds(late), seconds(m.dead_ttl))
    }),
];

/// The titles of all rows, table by table.
pub fn row_titles() -> [Vec<&'static str>; 3] {
    [
        QUESTIONS.iter().map(|question| question.title).collect(),
        FIGURES.iter().map(|(title, _)| *title).collect(),
        Fault::ALL.into_iter().map(Fault::title).collect(),
    ]
}

impl Comparison {
    /// Semantics, what was measured, and faults.
    pub fn tables(&self) -> [Table; 3] {
        let [semantics, measured, faults] = row_titles();
        let row = |title, answer: &dyn Fn(&super::ComparedSetUp) -> TableValue| TableRow {
            title,
            answers: self.set_ups.iter().map(answer).collect(),
        };
        let semantics = semantics.into_iter().zip(QUESTIONS).map(|(title, question)| {
            row(title, &|of| TableValue {
                text: question.answer(&of.capabilities),
                mark: Mark::of(question.shown_by, &of.reports),
            })
        });
        let measured = measured.into_iter().zip(FIGURES).map(|(title, (_, figure))| {
            row(title, &|of| TableValue { text: figure(&of.measured), mark: Mark::Stated })
        });
        let faults = faults.into_iter().zip(Fault::ALL).map(|(title, fault)| {
            row(title, &|of| {
                let guarantee = of.promises.guarantee(fault);
                // A trial shows what the driver states.
                let is_shown = guarantee == Some(of.capabilities.guarantee(fault));
                let mark = match guarantee {
                    Some(Guarantee::Impossible) => Mark::Stated,
                    _ if !is_shown => Mark::Stated,
                    _ => Mark::of(promises::shown_by(fault), &of.reports),
                };
                TableValue { text: guarantee.map_or("unknown", Guarantee::word).to_owned(), mark }
            })
        });
        [
            Table { title: "Semantics", note: SEMANTICS.into(), rows: semantics.collect() },
            Table { title: "Measured", note: MEASURED.into(), rows: measured.collect() },
            Table { title: "Faults", note: FAULTS.into(), rows: faults.collect() },
        ]
    }

    /// What requests cost, where a set-up is paid by the request.
    pub fn money(&self) -> Option<Table> {
        let all = || self.set_ups.iter().map(|set_up| &set_up.capabilities);
        if !all().any(money::is_paid_by_request) {
            return None;
        }
        let costs: Vec<_> = all().map(money::costs).collect();
        let rows = money::ROWS.into_iter().enumerate().map(|(at, title)| {
            let texts = costs.iter().map(|costs| costs[at].clone());
            let answers = texts.map(|text| TableValue { text, mark: Mark::Stated });
            TableRow { title, answers: answers.collect() }
        });
        Some(Table { title: "Money", note: money::note().into(), rows: rows.collect() })
    }
}

/// `12,300/s`, with three digits that mean something.
pub(super) fn rate(per_second: f64) -> String {
    format!("{}/s", grouped(rounded(per_second)))
}

/// Three digits that mean something.
fn rounded(value: f64) -> f64 {
    let digits = value.abs().max(1.0).log10().floor() as i32;
    let unit = 10_f64.powi((digits - 2).max(0));
    (value / unit).round() * unit
}

fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that suits it.
pub(super) fn seconds(time: f64) -> String {
    match time {
        t if t >= 9.95 => format!("{t:.0} s"),
        t if t >= 0.9995 => format!("{} s", trimmed(t, 1)),
        t if t >= 0.00995 => format!("{:.0} ms", t * 1e3),
        t if t >= 0.0009995 => format!("{} ms", trimmed(t * 1e3, 1)),
        t => format!("{:.0} µs", t * 1e6),
    }
}

fn trimmed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A title without the signs of its notes.
pub(super) fn without_notes(title: &str) -> String {
    title.trim_end_matches(['¹', '²', '³']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_the_unit_that_suits_them() {
        let rates = [(12_345.0, "12,300/s"), (987.4, "987/s"), (1_234_567.0, "1,230,000/s")];
        assert!(rates.iter().all(|(value, shown)| rate(*value) == *shown));
        let times = [
            (0.000_12, "120 µs"),
            (0.0042, "4.2 ms"),
            (0.0501, "50 ms"),
            (1.0, "1 s"),
            (12.4, "12 s"),
        ];
        for (value, shown) in times {
            assert_eq!(seconds(value), shown);
        }
    }
}
