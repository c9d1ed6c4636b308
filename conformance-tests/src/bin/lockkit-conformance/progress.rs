//! A bar on stderr while cases run; nothing when that is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;

use lockkit_conformance::Report;

/// How far the run is.
pub(crate) struct Progress {
    total: usize,
    done: Mutex<usize>,
    is_terminal: bool,
}

impl Progress {
    const WIDTH: usize = 30;

    pub(crate) fn new(total: usize) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { total, done: Mutex::new(0), is_terminal: shown }
    }

    pub(crate) fn done(&self, report: &Report) {
        let mut done = self.done.lock().unwrap_or_else(|e| e.into_inner());
        *done += 1;
        if self.is_terminal {
            let full = Self::WIDTH * *done / self.total.max(1);
            let bar = format!("{}{}", "█".repeat(full), "░".repeat(Self::WIDTH - full));
            let case: String = report.case.chars().take(40).collect();
            eprint!("\r\x1b[K{bar} {done}/{} {case}", self.total);
            let _ = std::io::stderr().flush();
        }
    }

    pub(crate) fn finish(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
