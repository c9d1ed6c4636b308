//! A history as a picture: who waited, who held what when with which token, where faults struck, and
//! the violations in red. One SVG file that any browser shows, as wide as there is room for; hover for
//! details.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::excuse::fault_windows;
use super::turn::{ClaimSpan, Held, turns};
use super::{History, Violation};

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 130.0;
const ROW: f64 = 14.0;
/// Where the rows begin: below the headline, the names of faults and the seconds.
const TOP: f64 = 78.0;
/// Faults whose names would be on top of each other share so many lines.
const LINES: usize = 3;
const COLOURS: [&str; 8] =
    ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#7f7f7f"];

/// Draws what happened to the lock of the first violation, around it; all locks at the beginning
/// when there is none.
pub fn svg(history: &History, violations: &[Violation]) -> String {
    let mut turns = turns(history, &mut Vec::new());
    let focus = violations.first();
    if let Some(focus) = focus.filter(|focus| turns.iter().any(|t| t.lock == focus.of)) {
        turns.retain(|turn| turn.lock == focus.of);
    }
    let window = Window::around(history, &turns, focus);
    let shown: Vec<&ClaimSpan> = turns.iter().filter(|t| window.shows(t)).collect();
    let mut rows: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    for turn in &shown {
        rows.entry((turn.lock.as_str(), turn.client)).or_default();
    }
    for (i, row) in rows.values_mut().enumerate() {
        *row = i;
    }
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + 30.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
         font-family='sans-serif' font-size='10'>\n<rect width='100%' height='100%' fill='white'/>"
    );
    faults(&mut out, history, &window, bottom);
    seconds(&mut out, &window, bottom);
    legend(&mut out, bottom + 18.0);
    for ((lock, client), row) in &rows {
        let y = TOP + ROW * *row as f64;
        let _ =
            writeln!(out, "<text x='4' y='{}'>{} · client {client}</text>", y + 9.0, text(lock));
    }
    for turn in &shown {
        let row = rows[&(turn.lock.as_str(), turn.client)];
        let guilty = focus.is_some_and(|v| v.by.contains(&(turn.client, turn.op)));
        bar(&mut out, turn, &window, TOP + ROW * row as f64, guilty);
    }
    if let Some(focus) = focus {
        let more = match violations.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more violations)"),
        };
        let _ = writeln!(
            out,
            "<text x='4' y='20' fill='#c00' font-size='14' font-weight='bold'>{}{more}</text>",
            text(&focus.to_string())
        );
        let x = window.x(focus.at);
        let _ = writeln!(
            out,
            "<line x1='{x:.1}' y1='{TOP}' x2='{x:.1}' y2='{bottom}' stroke='#c00' stroke-width='1.5'/>"
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The stretch of time that is shown.
struct Window {
    from: u64,
    to: u64,
}

impl Window {
    fn around(history: &History, turns: &[ClaimSpan], focus: Option<&Violation>) -> Self {
        let first = history.events.first().map_or(0, |e| e.at);
        let last = history.events.last().map_or(1, |e| e.at).max(first + 1);
        let Some(violation) = focus else {
            return Self { from: first, to: last.min(first + 10_000_000_000) };
        };
        // All of what the guilty did, and as much again on both sides, but no less than a second.
        let guilty = turns.iter().filter(|t| violation.by.contains(&(t.client, t.op)));
        let (mut from, mut to) = (violation.at, violation.at);
        for turn in guilty {
            from = from.min(turn.held.map_or(turn.asked, |held| held.returned_at));
            to = to.max(turn.held.map_or(turn.asked, |held| held.until));
        }
        let around = (to - from).max(1_000_000_000);
        Self { from: from.saturating_sub(around).max(first), to: (to + around).min(last) }
    }

    fn shows(&self, turn: &ClaimSpan) -> bool {
        turn.asked < self.to && end(turn).unwrap_or(u64::MAX) > self.from
    }

    fn x(&self, at: u64) -> f64 {
        let at = at.clamp(self.from, self.to);
        let part = (at - self.from) as f64 / (self.to - self.from).max(1) as f64;
        LEFT + part * (WIDTH - LEFT - 10.0)
    }
}

fn end(turn: &ClaimSpan) -> Option<u64> {
    match turn.held {
        Some(held) => Some(held.until.max(turn.over.unwrap_or(0))),
        None => turn.over,
    }
}

/// A stripe and its name for each.
fn faults(out: &mut String, history: &History, window: &Window, bottom: f64) {
    let (mut drawn, mut names) = (0, String::new());
    for fault in fault_windows(history) {
        if fault.ends < window.from || fault.begins > window.to {
            continue;
        }
        let (x, to) = (window.x(fault.begins), window.x(fault.ends));
        let name = fault.fault.title().trim_end_matches('²');
        let on = text(&fault.on);
        let y = 34.0 + 11.0 * (drawn % LINES) as f64;
        let _ = writeln!(
            out,
            "<rect x='{x:.1}' y='{0:.1}' width='{1:.1}' height='{2:.1}' fill='#f4c7c3' \
             fill-opacity='0.6'><title>{name} ({on})</title></rect>",
            y - 8.0,
            (to - x).max(1.5),
            bottom - y + 8.0
        );
        // At the right edge there is room on the left only.
        let (x, anchor) = if x > WIDTH - 200.0 { (x - 2.0, "end") } else { (x + 2.0, "start") };
        let _ = writeln!(
            names,
            "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='#7a1f16'>{name} ({on})</text>"
        );
        drawn += 1;
    }
    // On top of all stripes.
    out.push_str(&names);
}

/// What time it is, in seconds since the beginning of what is shown.
fn seconds(out: &mut String, window: &Window, bottom: f64) {
    let whole = (window.to - window.from) / 1_000_000_000;
    let step = (whole / 12).max(1);
    for second in (0..=whole).step_by(step as usize) {
        let x = window.x(window.from + second * 1_000_000_000);
        let anchor = if x > WIDTH - 40.0 { "end" } else { "start" };
        let _ = writeln!(
            out,
            "<line x1='{x:.1}' y1='{0}' x2='{x:.1}' y2='{bottom}' stroke='#ccc' \
             stroke-width='0.5'/><text x='{x:.1}' y='{1}' text-anchor='{anchor}' \
             fill='#555'>{second} s</text>",
            TOP,
            TOP - 6.0
        );
    }
}

fn legend(out: &mut String, y: f64) {
    let _ = writeln!(
        out,
        "<text x='4' y='{y}' fill='#555'>dashed: waits; bar: its guard is valid, with its token; “lost”: \
         its guard ended without a release; pink: a fault; outlined in red: took part in a violation\
         </text>"
    );
}

/// A thin line while it waits, a thick one while its guard is valid, outlined in red if guilty, with
/// a word behind it if the lock was lost.
fn bar(out: &mut String, turn: &ClaimSpan, window: &Window, y: f64, guilty: bool) {
    let colour = COLOURS[turn.client as usize % COLOURS.len()];
    let waits_until = turn.answered().unwrap_or(window.to);
    let (x, to) = (window.x(turn.asked), window.x(waits_until));
    let _ = writeln!(
        out,
        "<line x1='{x:.1}' y1='{0:.1}' x2='{to:.1}' y2='{0:.1}' stroke='{colour}' \
         stroke-dasharray='2,2'/>",
        y + 6.0
    );
    let held = turn.held.filter(|held| held.returned_at < window.to);
    let Some(Held { returned_at: at, token, until, .. }) = held else { return };
    let (x, to) = (window.x(at), window.x(until));
    let outline = if guilty { "stroke='#c00' stroke-width='2'" } else { "stroke='none'" };
    let seconds = (until.saturating_sub(at)) as f64 / 1e9;
    let _ = writeln!(
        out,
        "<rect x='{x:.1}' y='{:.1}' width='{:.1}' height='10' fill='{colour}' {outline}>\
         <title>client {} held {} ({:?}) for {seconds:.3} s, token {token}</title></rect>",
        y + 1.0,
        (to - x).max(1.0),
        turn.client,
        text(&turn.lock),
        turn.mode,
    );
    if to - x > 8.0 * token.to_string().len() as f64 {
        let _ = writeln!(
            out,
            "<text x='{:.1}' y='{:.1}' fill='white'>{token}</text>",
            x + 2.0,
            y + 9.5
        );
    }
    if turn.failed && until <= window.to {
        let _ = writeln!(
            out,
            "<text x='{:.1}' y='{:.1}' fill='#111' font-style='italic'>lost</text>",
            to + 3.0,
            y + 9.5
        );
    }
}

fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&apos;")
}
