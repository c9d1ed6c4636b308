//! A history in one file, with what was promised: JSON lines, the first of which says how many events
//! follow and what the judge must know. So a file that was cut is distinguished from a short one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Event, History, RecordedPromises};

/// A history and what was promised: all that the judge needs.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What happened.
    pub history: History,
    /// What was promised.
    pub promises: RecordedPromises,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The version of the form of the file.
    lockkit_history: u32,
    events: usize,
    promises: RecordedPromises,
}

const VERSION: u32 = 1;

impl Recorded {
    /// Writes it to a file, over what is there.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let events = self.history.events.len();
        let head = Head { lockkit_history: VERSION, events, promises: self.promises.clone() };
        writeln!(file, "{}", serde_json::to_string(&head)?)?;
        for event in &self.history.events {
            writeln!(file, "{}", serde_json::to_string(event)?)?;
        }
        file.flush()
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// When the file cannot be read; of the kind `InvalidData` when it is no history, or not all of
    /// one.
    pub fn load(path: impl AsRef<Path>) -> io::Result<Self> {
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut lines = BufReader::new(File::open(path)?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let head: Head = serde_json::from_str(&first)
            .map_err(|_| bad("its first line is not that of a history".to_owned()))?;
        if head.lockkit_history != VERSION {
            return Err(bad(format!("it is of version {}, not {VERSION}", head.lockkit_history)));
        }
        let mut events: Vec<Event> = Vec::new();
        let cut = |read| bad(format!("it is cut off after {read} of its {} events", head.events));
        for line in lines {
            let line = line?;
            match serde_json::from_str(&line) {
                Ok(event) => events.push(event),
                Err(_) if events.len() + 1 < head.events && line.ends_with('}') => {
                    return Err(bad(format!("line {} is no event", events.len() + 2)));
                }
                Err(_) => return Err(cut(events.len())),
            }
        }
        if events.len() != head.events {
            return Err(cut(events.len()));
        }
        Ok(Self { history: History::new(events), promises: head.promises })
    }
}
