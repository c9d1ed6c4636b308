//! Messages of PostgreSQL's protocol 3. May not interpret SQL.

use super::message::{Message, MessageClass, Wire};

const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

#[derive(Debug)]
pub(crate) struct Postgres {
    /// The client's next message has no type: it has not logged in yet.
    untyped: bool,
    /// The server answers with a single byte whether it would encrypt.
    one_byte: bool,
    in_request: bool,
    in_answer: bool,
    /// The last request ended with a Flush, whose answer ends without a sign.
    flushed: bool,
}

impl Default for Postgres {
    fn default() -> Self {
        Self { untyped: true, one_byte: false, in_request: false, in_answer: false, flushed: false }
    }
}

impl Wire for Postgres {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        if self.untyped {
            return self.login(arrived);
        }
        let length = typed(arrived)?;
        let begins = match arrived[0] {
            b'X' => vec![MessageClass::Chatter],
            b'd' | b'c' | b'f' => vec![], // data of a COPY
            kind => {
                let begins = if self.in_request { vec![] } else { vec![MessageClass::Request] };
                if !self.in_request && self.flushed {
                    (self.in_answer, self.flushed) = (false, false);
                }
                self.in_request = !matches!(kind, b'Q' | b'S' | b'F' | b'H' | b'p');
                self.flushed |= kind == b'H';
                begins
            }
        };
        Message::take(arrived, length, begins)
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        if self.one_byte && !arrived.is_empty() {
            self.one_byte = false;
            return Message::take(arrived, 1, vec![MessageClass::Answer]);
        }
        let length = typed(arrived)?;
        let kind = arrived[0];
        let begins = match kind {
            b'A' => vec![MessageClass::Push],
            b'N' | b'S' if !self.in_answer => vec![MessageClass::Chatter],
            _ => {
                let begins = if self.in_answer { vec![] } else { vec![MessageClass::Answer] };
                self.in_answer = !ends_answer(kind, &arrived[5..length]);
                begins
            }
        };
        Message::take(arrived, length, begins)
    }
}

impl Postgres {
    fn login(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = number(arrived)? as usize;
        let code = number(arrived.get(4..)?)?;
        if arrived.len() < length {
            return None;
        }
        match code {
            SSL | GSS => self.one_byte = true,
            CANCEL => {}
            _ => self.untyped = false,
        }
        Message::take(arrived, length, vec![MessageClass::Request])
    }
}

/// After these the server waits for the client.
fn ends_answer(kind: u8, body: &[u8]) -> bool {
    match kind {
        b'Z' | b'G' | b'W' => true,
        // A request for a password or for the next step of an exchange; neither
        // "you are in" (0) nor the last word of the exchange (12).
        b'R' => !matches!(number(body), Some(0 | 12)),
        _ => false,
    }
}

fn typed(bytes: &[u8]) -> Option<usize> {
    let length = number(bytes.get(1..)?)? as usize + 1;
    (bytes.len() >= length).then_some(length)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|four| u32::from_be_bytes(*four))
}
