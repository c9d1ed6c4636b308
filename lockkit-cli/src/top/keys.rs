//! The keys of the terminal. May not know what they mean.

use ratatui::crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc::UnboundedSender;

use super::Event;

/// A key, as the view knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Enter,
    Escape,
    Erase,
    Char(char),
    /// Ctrl-C, which is no signal while the view is shown.
    Interrupt,
}

/// Tells of each key, from a thread of its own, until the terminal or the view is gone.
pub(super) fn read(tell: UnboundedSender<Event>) {
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let event = match event {
                event::Event::Resize(..) => Some(Event::Resized),
                event::Event::Key(key) if key.kind != KeyEventKind::Release => {
                    known(key.code, key.modifiers).map(Event::Key)
                }
                _ => None,
            };
            if event.is_some_and(|event| tell.send(event).is_err()) {
                return;
            }
        }
    });
}

fn known(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    let control = modifiers.contains(KeyModifiers::CONTROL);
    Some(match code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(_) if control || modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::First,
        KeyCode::End => Key::Last,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Erase,
        _ => return None,
    })
}
