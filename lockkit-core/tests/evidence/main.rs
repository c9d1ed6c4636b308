//! What core makes of the evidence that comes with renewals: the rule by itself, and guards on a driver
//! whose server is replaced, restored, or has a clock of its own. Under a paused clock.

mod doctor;
mod guards;
mod rule;
mod server;

use std::time::Duration;

use lockkit_core::{Margin, Settings};

/// The margin of a backend with a clock of its own; that of the memory driver is smaller.
fn settings() -> Settings {
    Settings::default().drift_margin(Margin::default())
}

const SECOND: Duration = Duration::from_secs(1);
