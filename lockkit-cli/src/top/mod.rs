//! `top`: a live view of the locks in use. The state and what keys do to it are in `model.rs`, the
//! picture of a state in `draw.rs`, the reading of keys in `keys.rs`, the asking of the backend in
//! `poll.rs`. Here these are put together.

mod changes;
mod draw;
mod keys;
mod model;
mod poll;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};

use lockkit::Name;
use lockkit::state::LockState;
use ratatui::DefaultTerminal;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::args::BackendArgs;
use crate::args::inspect::TopArgs;
use crate::backend::Backend;
use crate::exit::{Ending, ExitError};
use crate::run::signals::Signals;
use crate::{acquire, output};
use keys::Key;
use model::{Effect, Model};
use poll::Poller;

/// What the view hears of.
enum Event {
    Key(Key),
    /// The terminal has another size, or has to be drawn again.
    Resized,
    /// What is in use, or why it is not known.
    Looked(Result<Vec<LockState>, String>),
    /// What became of a break.
    Broke(Result<String, String>),
}

pub(crate) async fn top(args: &TopArgs, backend: &BackendArgs) -> Result<Ending, ExitError> {
    if !args.beginning.is_empty() {
        Name::new(&args.beginning)?;
    }
    let backend = Backend::choose(backend)?;
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Err(ExitError::usage("top needs a terminal: use ls, show or watch in a script"));
    }
    let locks = backend.connect().await?;
    let mut signals = Signals::ending()?;
    let mut model =
        Model::new(backend.url_without_passwords(), backend.namespace(), &args.beginning);
    let mut screen = Screen::open()?;
    let (tell, mut events) = mpsc::unbounded_channel();
    keys::read(tell.clone());
    let poller = Poller::start(&locks, args, tell);
    let ended = show(&mut screen.0, &mut model, &mut events, &poller, &mut signals).await;
    drop(screen);
    poller.stop();
    acquire::close(&locks).await;
    ended
}

/// Shows the state and does what the keys ask for, until one of them or a signal ends it.
async fn show(
    screen: &mut DefaultTerminal,
    model: &mut Model,
    events: &mut UnboundedReceiver<Event>,
    poller: &Poller,
    signals: &mut Signals,
) -> Result<Ending, ExitError> {
    let palette = draw::Palette { colored: output::colored() };
    loop {
        let drawn = screen.draw(|frame| draw::draw(frame, model, palette));
        drawn.map_err(|error| ExitError::os("cannot draw on the terminal", error))?;
        let event = tokio::select! {
            signal = signals.next() => return Ok(Ending::Signal(signal)),
            event = events.recv() => event,
        };
        let effect = match event {
            // The terminal is gone, and with it the keys.
            None => return Ok(Ending::Code(0)),
            Some(Event::Key(key)) => model.press(key),
            Some(Event::Resized) => None,
            Some(Event::Looked(Ok(states))) => {
                model.update(states, poller.age());
                None
            }
            Some(Event::Looked(Err(error))) => {
                model.fail(error);
                None
            }
            Some(Event::Broke(outcome)) => {
                model.tell(outcome);
                poller.look_now();
                None
            }
        };
        match effect {
            None => {}
            Some(Effect::Quit) => return Ok(Ending::Code(0)),
            Some(Effect::Ask(beginning)) => poller.ask(beginning),
            Some(Effect::Break(target)) => poller.break_it(target),
        }
    }
}

/// The terminal while it shows the view. Restored when dropped, and by a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, ExitError> {
        ratatui::try_init()
            .map(Self)
            .map_err(|error| ExitError::os("cannot use the terminal", error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
    }
}
