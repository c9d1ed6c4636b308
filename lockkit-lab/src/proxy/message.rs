//! What passes through the proxy: messages, and the trait by which each protocol
//! tells where one ends and what it is. May not know of faults or of sockets.

/// A protocol whose messages the proxy can tell apart. None of them over TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Redis, RESP2 and RESP3. A request is one command, also within a pipeline.
    /// Pub/sub messages and other RESP3 pushes are pushes; confirmations of
    /// subscriptions are answers, one for each channel.
    Resp,
    /// PostgreSQL. A request is everything up to and including the message that
    /// asks for an answer (Query, Sync, Flush, a password); an answer reaches up to
    /// "ready for query". Notifications are pushes.
    Postgres,
    /// MySQL and MariaDB. A request is one command packet, an answer everything
    /// until the next one. Commands that are not answered (quit, closing a prepared
    /// statement) are chatter, as is the server's greeting.
    MySql,
    /// ZooKeeper. Pings and their answers are chatter, events of watches pushes.
    ZooKeeper,
    /// gRPC over HTTP/2, as etcd speaks it. A request or answer is one gRPC
    /// message, or an error status instead of one. Events on a watch are pushes;
    /// settings, pings, window updates and resets are chatter.
    Grpc,
    /// HTTP/1.1, as DynamoDB speaks it.
    Http1,
    /// Anything: what arrives at a time is taken for a message.
    Unknown,
}

/// What one message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageClass {
    /// Something that the server answers.
    Request,
    /// What it answers.
    Answer,
    /// Something that the server says by itself.
    Push,
    /// Keep-alives, flow control, farewells: part of no exchange.
    Chatter,
}

/// Bytes that pass or do not pass as a whole.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Which messages begin in these bytes; none if they continue earlier ones.
    pub(crate) begins: Vec<MessageClass>,
}

impl Message {
    /// Takes the first `length` bytes off a buffer.
    pub(crate) fn take(
        buffer: &mut Vec<u8>,
        length: usize,
        begins: Vec<MessageClass>,
    ) -> Option<Self> {
        let rest = buffer.split_off(length);
        Some(Self { bytes: std::mem::replace(buffer, rest), begins })
    }
}

/// One connection's view of a protocol. Both methods take the next complete
/// message off the front of what has arrived; `None` asks for more bytes.
pub(crate) trait Wire: Send {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message>;
    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message>;
}

pub(super) struct Unknown;

impl Wire for Unknown {
    fn to_server(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = arrived.len();
        (length > 0).then(|| Message::take(arrived, length, vec![MessageClass::Request]))?
    }

    fn to_client(&mut self, arrived: &mut Vec<u8>) -> Option<Message> {
        let length = arrived.len();
        (length > 0).then(|| Message::take(arrived, length, vec![MessageClass::Answer]))?
    }
}
