//! Histories: what concurrent clients asked, what they were answered, and when; written by a
//! [`Recorder`], judged by [`judge()`], shown by [`draw`]. Nothing here runs a lock.
//!
//! All times are nanoseconds on the boot clock of one machine, which its processes share.

pub mod draw;
pub mod event;
mod excuse;
mod file;
pub mod judge;
mod linear;
mod liveness;
pub mod register;
mod turn;
mod updates;
pub mod violation;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

pub use event::{Event, EventKind, HeldMode};
pub use excuse::{Excuse, Excused};
pub use file::Recorded;
pub use judge::{HistoryJudgement, judge};
pub use lockkit_conformance::wrap::now;
pub use violation::{RecordedPromises, Violation};

/// What happened, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events, earliest first.
    pub events: Vec<Event>,
}

impl History {
    /// A history of these events, in whatever order they are given.
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// Reads what recorders wrote. A line that was cut short by the death of its process is
    /// passed over if it is the last of its file.
    pub fn load(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<Self> {
        let mut events = Vec::new();
        for path in paths {
            let lines: Vec<String> =
                BufReader::new(File::open(path.as_ref())?).lines().collect::<Result<_, _>>()?;
            for (i, line) in lines.iter().enumerate() {
                match serde_json::from_str(line) {
                    Ok(event) => events.push(event),
                    Err(_) if i + 1 == lines.len() => {}
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
        }
        Ok(Self::new(events))
    }
}

/// Writes events to a file as JSON lines, each at once, so that they survive the process.
#[derive(Debug)]
pub struct Recorder {
    client: u32,
    file: Mutex<File>,
}

impl Recorder {
    /// Appends the events of this client to a file. Several clients, and processes, may share one.
    pub fn open(path: impl AsRef<Path>, client: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { client, file: Mutex::new(file) })
    }

    /// Records that this happens now.
    pub fn record(&self, what: EventKind) -> io::Result<()> {
        self.record_at(now(), what)
    }

    /// Records that this happened then.
    pub fn record_at(&self, at: u64, what: EventKind) -> io::Result<()> {
        let mut line = serde_json::to_string(&Event { at, client: self.client, what })?;
        line.push('\n');
        // One write a line: appends of several processes do not mix.
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }
}
