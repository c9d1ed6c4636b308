//! How durations, claims and states read to people.

use std::time::Duration;

use lockkit::state::{ClaimState, LockState};
use lockkit::{Mode, Space};

/// A duration as people say it: `350 ms`, `12 s`, `5 min 3 s`, `2 h 10 min`, `3 d 4 h`.
pub(crate) fn duration(d: Duration) -> String {
    let seconds = d.as_secs();
    match seconds {
        0 => format!("{} ms", d.as_millis()),
        1..60 => match d.subsec_millis() / 100 {
            0 => format!("{seconds} s"),
            tenths if seconds < 10 => format!("{seconds}.{tenths} s"),
            _ => format!("{seconds} s"),
        },
        60..3_600 => two(seconds, 60, "min", 1, "s"),
        3_600..86_400 => two(seconds, 3_600, "h", 60, "min"),
        _ => two(seconds, 86_400, "d", 3_600, "h"),
    }
}

fn two(seconds: u64, large: u64, large_name: &str, small: u64, small_name: &str) -> String {
    let (whole, rest) = (seconds / large, seconds % large / small);
    match rest {
        0 => format!("{whole} {large_name}"),
        rest => format!("{whole} {large_name} {rest} {small_name}"),
    }
}

/// The mode of a claim.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Permits { permits, limit } => format!("{permits} of {limit}"),
        mode => mode.as_str().to_owned(),
    }
}

/// `the lock "a"` or `the semaphore "a"`.
pub(crate) fn subject(space: Space, name: &str) -> String {
    format!("the {space} {name:?}")
}

/// Who holds, since when, and why: `lockkit[12]@host for 5 s ("nightly") and 2 others`.
pub(crate) fn holders(state: &LockState) -> Option<String> {
    let mut holders = state.holders();
    let first = holders.next()?;
    let held = first.held_for.unwrap_or_default();
    let mut text = format!("{} for {}", first.identity, duration(held));
    if let Some(note) = &first.note {
        text.push_str(&format!(" ({note:?})"));
    }
    match holders.count() {
        0 => {}
        1 => text.push_str(" and 1 other"),
        n => text.push_str(&format!(" and {n} others")),
    }
    Some(text)
}

/// One claim in a line of its own.
pub(crate) fn claim(standing: &ClaimState) -> String {
    let mut text =
        format!("token {}, {}, {}", standing.token, mode(standing.mode), standing.identity);
    match standing.held_for {
        Some(held) => text.push_str(&format!(", for {}", duration(held))),
        None => text.push_str(&format!(", for {}", duration(standing.queued_for))),
    }
    text.push_str(&format!(", expires in {}", duration(standing.expires_in)));
    if !standing.lock_delay.is_zero() {
        let delay = duration(standing.lock_delay);
        text.push_str(&format!(", closed for {delay} after a loss"));
    }
    if standing.broken {
        text.push_str(", broken: ends with its lease");
    }
    if let Some(note) = &standing.note {
        text.push_str(&format!(", {note:?}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        for (ms, said) in [
            (0, "0 ms"),
            (350, "350 ms"),
            (1_500, "1.5 s"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (303_000, "5 min 3 s"),
            (7_800_000, "2 h 10 min"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), said);
        }
    }
}
