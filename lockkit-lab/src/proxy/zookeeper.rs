//! Messages of ZooKeeper's protocol: frames that begin with their length. May not
//! interpret requests.

use super::message::{Message, MessageClass, Wire};

const XID_EVENT: i32 = -1;
const XID_PING: i32 = -2;
/// No frame is that long; but the four letters of `ruok` are that number.
const LONGEST: usize = 0x1000_0000;

#[derive(Debug, Default)]
pub(crate) struct ZooKeeper {
    /// The first frame each way opens the session and has no `xid`.
    asked: bool,
    answered: bool,
    /// A four letter word: what follows is text.
    text: bool,
}

impl Wire for ZooKeeper {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        if !self.asked && length(arrived)? > LONGEST {
            self.text = true;
        }
        let (length, xid) = self.frame(arrived)?;
        let ping = self.asked && xid == Some(XID_PING);
        self.asked = true;
        Message::take(
            arrived,
            length,
            vec![if ping { MessageClass::Chatter } else { MessageClass::Request }],
        )
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let (length, xid) = self.frame(arrived)?;
        let class = match xid {
            _ if self.text && self.answered => return Message::take(arrived, length, vec![]),
            Some(XID_EVENT) if self.answered => MessageClass::Push,
            Some(XID_PING) if self.answered => MessageClass::Chatter,
            _ => MessageClass::Answer,
        };
        self.answered = true;
        Message::take(arrived, length, vec![class])
    }
}

impl ZooKeeper {
    /// Length and `xid` of the frame at the front.
    fn frame(&self, bytes: &[u8]) -> Option<(usize, Option<i32>)> {
        if self.text {
            return (!bytes.is_empty()).then_some((bytes.len(), None));
        }
        let length = 4 + length(bytes)?;
        let xid = bytes.get(4..)?.first_chunk().map(|four| i32::from_be_bytes(*four));
        (bytes.len() >= length).then_some((length, xid))
    }
}

fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|four| u32::from_be_bytes(*four) as usize)
}
