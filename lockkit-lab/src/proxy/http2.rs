//! gRPC messages in HTTP/2 frames, as far as etcd's clients and servers use them.
//! May not decode headers: what it needs shows in the frames and in the data.

use std::collections::HashMap;

use super::message::{Message, MessageClass, Wire};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x01;
const PADDED: u8 = 0x08;
/// The events of etcd's `WatchResponse`: field 11, of variable length. No other
/// answer on a stream that stays open has such a field.
const EVENTS: u64 = 11 << 3 | 2;

#[derive(Debug, Default)]
pub(crate) struct Http2 {
    greeted: bool,
    streams: HashMap<u32, Stream>,
}

#[derive(Debug, Default)]
struct Stream {
    up: Pieces,
    down: Pieces,
    /// The client has said all that it will: one question, as a rule.
    asked_all: bool,
    ambiguous: u64,
}

impl Wire for Http2 {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        if !self.greeted && !arrived.is_empty() {
            if arrived.len() < PREFACE.len() {
                return None;
            }
            self.greeted = true;
            return Message::take(arrived, PREFACE.len(), vec![MessageClass::Chatter]);
        }
        let frame = Frame::read(arrived)?;
        let begins = match frame.kind {
            DATA | HEADERS => {
                let stream = self.streams.entry(frame.stream).or_default();
                let messages = frame.data().map_or(0, |data| stream.up.add(data).len());
                stream.ambiguous += messages as u64;
                stream.asked_all |= frame.ends_stream();
                vec![MessageClass::Request; messages]
            }
            RST_STREAM => {
                self.streams.remove(&frame.stream);
                vec![MessageClass::Chatter]
            }
            CONTINUATION => vec![],
            _ => vec![MessageClass::Chatter],
        };
        let length = frame.length();
        Message::take(arrived, length, begins)
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let frame = Frame::read(arrived)?;
        let begins = match frame.kind {
            DATA | HEADERS | RST_STREAM => self.answer(&frame),
            CONTINUATION => vec![],
            _ => vec![MessageClass::Chatter],
        };
        let length = frame.length();
        Message::take(arrived, length, begins)
    }
}

impl Http2 {
    fn answer(&mut self, frame: &Frame<'_>) -> Vec<MessageClass> {
        let Some(stream) = self.streams.get_mut(&frame.stream) else {
            return vec![MessageClass::Chatter];
        };
        let mut begins = Vec::new();
        for message in frame.data().map(|data| stream.down.add(data)).unwrap_or_default() {
            if !stream.asked_all && has_field(message, EVENTS) {
                begins.push(MessageClass::Push);
            } else {
                stream.ambiguous = stream.ambiguous.saturating_sub(1);
                begins.push(MessageClass::Answer);
            }
        }
        if frame.ends_stream() || frame.kind == RST_STREAM {
            // The status of an error comes instead of an answer.
            if stream.ambiguous > 0 {
                begins.push(MessageClass::Answer);
            }
            self.streams.remove(&frame.stream);
        }
        begins
    }
}

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let body = bytes.get(HEAD..HEAD + length)?;
        Some(Self { kind: head[3], flags: head[4], stream, body })
    }

    fn length(&self) -> usize {
        HEAD + self.body.len()
    }

    fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    fn data(&self) -> Option<&'a [u8]> {
        match (self.kind == DATA, self.flags & PADDED != 0) {
            (false, _) => None,
            (true, false) => Some(self.body),
            (true, true) => {
                let (padding, rest) = self.body.split_first()?;
                rest.get(..rest.len().checked_sub(usize::from(*padding))?)
            }
        }
    }
}

/// gRPC messages of one direction of a stream: a byte of flags, four of length,
/// the message; cut into frames anyhow.
#[derive(Debug, Default)]
struct Pieces {
    head: Vec<u8>,
    /// What is still to come of the message that has begun.
    missing: usize,
}

impl Pieces {
    /// As much as is there of each message whose head is complete in `data`.
    fn add<'a>(&mut self, mut data: &'a [u8]) -> Vec<&'a [u8]> {
        let mut begun = Vec::new();
        loop {
            let (_, rest) = data.split_at(self.missing.min(data.len()));
            self.missing -= data.len() - rest.len();
            let (head, rest) = rest.split_at(rest.len().min(5 - self.head.len()));
            self.head.extend_from_slice(head);
            let Ok([_, length @ ..]) = <[u8; 5]>::try_from(&self.head[..]) else {
                return begun;
            };
            self.head.clear();
            self.missing = u32::from_be_bytes(length) as usize;
            begun.push(&rest[..self.missing.min(rest.len())]);
            data = rest;
        }
    }
}

/// Whether a protobuf message has this tag at its top level.
fn has_field(mut message: &[u8], wanted: u64) -> bool {
    while let Some((tag, rest)) = varint(message) {
        if tag == wanted {
            return true;
        }
        let skipped = match tag & 7 {
            0 => varint(rest).map(|(_, rest)| rest),
            1 => rest.get(8..),
            2 => varint(rest).and_then(|(length, rest)| rest.get(usize::try_from(length).ok()?..)),
            5 => rest.get(4..),
            _ => None,
        };
        let Some(rest) = skipped else { return false };
        message = rest;
    }
    false
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_frames_cut_them() {
        let mut data = Vec::new();
        for body in [&b"first"[..], b"", b"third one"] {
            data.push(0);
            data.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
            data.extend_from_slice(body);
        }
        for size in 1..=data.len() {
            let mut pieces = Pieces::default();
            let found: usize = data.chunks(size).map(|chunk| pieces.add(chunk).len()).sum();
            assert_eq!(found, 3, "frames of {size} bytes");
        }
    }

    #[test]
    fn events_are_told_from_answers() {
        let created = [0x0a, 2, 8, 1, 0x18, 1];
        let event = [0x0a, 2, 8, 1, 0x5a, 1, 0];
        assert!(!has_field(&created, EVENTS));
        assert!(has_field(&event, EVENTS));
    }
}
