//! Messages of MySQL's protocol, which is half duplex: an answer reaches until the
//! client speaks again. May not interpret results.

use super::message::{Message, MessageClass, Wire};

const HEAD: usize = 4;
/// A packet of this length is continued in the next one.
const LONGEST: usize = 0x00ff_ffff;
const COM_QUIT: u8 = 0x01;
const COM_STMT_SEND_LONG_DATA: u8 = 0x18;
const COM_STMT_CLOSE: u8 = 0x19;

#[derive(Debug, Default)]
pub(crate) struct MySql {
    continued: bool,
    /// A request is under way that has had no answer.
    asked: bool,
    greeted: bool,
}

impl Wire for MySql {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = packet(arrived)?;
        let first_of_command = arrived[3] == 0;
        let begins = match arrived.get(HEAD) {
            _ if self.continued => vec![],
            Some(&(COM_QUIT | COM_STMT_SEND_LONG_DATA | COM_STMT_CLOSE)) if first_of_command => {
                vec![MessageClass::Chatter]
            }
            _ => {
                self.asked = true;
                vec![MessageClass::Request]
            }
        };
        self.continued = length - HEAD == LONGEST;
        Message::take(arrived, length, begins)
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = packet(arrived)?;
        let begins = match (self.asked, self.greeted) {
            (true, _) => vec![MessageClass::Answer],
            (false, false) => vec![MessageClass::Chatter],
            (false, true) => vec![],
        };
        (self.asked, self.greeted) = (false, true);
        Message::take(arrived, length, begins)
    }
}

fn packet(bytes: &[u8]) -> Option<usize> {
    let head = u32::from_le_bytes(*bytes.first_chunk::<HEAD>()?);
    let length = HEAD + (head & 0x00ff_ffff) as usize;
    (bytes.len() >= length).then_some(length)
}
