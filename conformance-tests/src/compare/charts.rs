//! The charts of the page, as SVG that is as wide as its place: lengths along it are percentages, so
//! that text keeps its size on a phone.

use std::fmt::Write;

use super::HoldSpan;

/// A bar and what stands beside it.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) label: String,
}

const BAR: usize = 38;
const ROW: usize = 16;

/// Bars on a logarithmic scale with a line at each power of ten.
pub(super) fn bars(title: &str, bars: &[Bar], tick: fn(f64) -> String) -> String {
    let values = bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0);
    let (least, most) =
        values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    let (low, high) = match least <= most {
        true => ((least.log10() - 0.2).floor(), (most.log10() + 0.02).ceil()),
        false => (0.0, 1.0),
    };
    let percent = |value: f64| ((value.log10() - low) / (high - low) * 100.0).clamp(0.5, 100.0);
    let bottom = BAR * bars.len();
    let mut out = format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"100%\" height=\"{}\">\n",
        text(title),
        bottom + 20
    );
    let mut power = low;
    while power <= high {
        let x = (power - low) / (high - low) * 100.0;
        let anchor = match () {
            () if power == low => "start",
            () if power == high => "end",
            () => "middle",
        };
        let _ = writeln!(
            out,
            "<line class=\"tick\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x:.2}%\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            bottom + 15,
            tick(10_f64.powf(power))
        );
        power += 1.0;
    }
    for (i, bar) in bars.iter().enumerate() {
        let y = BAR * i;
        let width = if bar.value > 0.0 { percent(bar.value) } else { 0.5 };
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"{0}\">{1}</text><text x=\"100%\" y=\"{0}\" \
             text-anchor=\"end\">{2}</text><rect class=\"bar\" x=\"0\" y=\"{3}\" width=\"{width:.2}%\" \
             height=\"12\" rx=\"2\"/>",
            y + 14,
            text(&bar.name),
            text(&bar.label),
            y + 20
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Who waited and who held, when.
pub(super) fn timeline(title: &str, turns: &[HoldSpan], lasts: f64) -> String {
    let rows = turns.iter().map(|turn| turn.task + 1).max().unwrap_or(0);
    let mut out = format!(
        "<svg role=\"img\" aria-label=\"who held the lock of {}, when\" width=\"100%\" \
         height=\"{}\">\n",
        text(title),
        rows * ROW
    );
    let percent = |at: f64| at / lasts.max(f64::MIN_POSITIVE) * 100.0;
    for HoldSpan { task, asked, granted, released, token } in turns {
        let y = ROW * task;
        let (from, at, to) = (percent(*asked), percent(*granted), percent(*released));
        let width = (to - at).max(0.3);
        let _ = writeln!(
            out,
            "<line class=\"waits\" x1=\"{from:.2}%\" x2=\"{at:.2}%\" y1=\"{0}\" y2=\"{0}\"/>\
             <rect class=\"task{1}\" x=\"{at:.2}%\" y=\"{2}\" width=\"{width:.2}%\" height=\"10\">\
             <title>task {3}, token {token}: waited {4:.1} ms</title></rect>",
            y + 8,
            task % 4,
            y + 3,
            task + 1,
            (granted - asked) * 1e3
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Text, escaped for HTML.
pub(super) fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
