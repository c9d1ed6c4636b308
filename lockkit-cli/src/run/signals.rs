//! Signals that lockkit receives, as a stream. What was ignored when lockkit began (by `nohup`, by
//! a shell that started it in the background) stays ignored, for the command as well.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::ExitError;
use crate::system::ignored_signals;

/// What ends a wait, and is passed on to a command.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What is passed on to a command beside these.
pub(crate) const TELLING: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::TSTP, Signal::WINCH];

/// Some signals, caught from the moment it was made.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches these, but for those that are ignored.
    pub(crate) fn catch(signals: &[Signal]) -> io::Result<Self> {
        let ignored = ignored_signals();
        let mut caught = Vec::new();
        for signal in signals {
            let number = signal.as_raw();
            if ignored & (1 << (number - 1)) == 0 {
                caught.push((*signal, unix::signal(SignalKind::from_raw(number))?));
            }
        }
        Ok(Self(caught))
    }

    /// Catches what asks for an end. Made once, before the first wait, and handed from phase to
    /// phase: one that came between two of them is found in the next.
    pub(crate) fn ending() -> Result<Self, ExitError> {
        Self::catch(&ENDING).map_err(|error| ExitError::os("signals", error))
    }

    /// Whether this is one that asks for an end.
    pub(crate) fn asks_to_end(signal: Signal) -> bool {
        ENDING.contains(&signal)
    }

    /// The next one, which may have come before this was called.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
