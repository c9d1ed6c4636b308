//! What the user of a connection may do: publish, and call the commands of the scripts. Asked once on
//! each connection, so that no script stops in the middle of its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkit_core::Error;
use lockkit_core::driver::{ClaimId, wake_ups_refused};
use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::driver::Shared;
use crate::failure::{Failed, to_error};
use crate::script::{self, Call};
use crate::{BACKEND, keys, reply};

/// The first word of a message of a client to itself: its subscription is where its commands go.
pub(crate) const ALIVE: &str = "alive";

/// Under which name a client publishes, and whether it does.
#[derive(Debug)]
pub(crate) struct Voice {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: String,
    mute: AtomicBool,
}

impl Voice {
    pub(crate) fn new() -> Self {
        let id = ClaimId::random().to_hex();
        Self { client: id[..16].to_owned(), mute: AtomicBool::new(false) }
    }

    /// Whether the server refuses what this client publishes. Its scripts do not try it then, since
    /// each refusal is an entry in the server's log.
    pub(crate) fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Relaxed)
    }

    /// The client as its claims name it: who waits behind one that is mute polls.
    pub(crate) fn mark(&self) -> String {
        let mark = if self.is_mute() { "-" } else { "" };
        format!("{mark}{}", self.client)
    }

    /// The server refused a message. Said once a connection.
    pub(crate) fn refused(&self, why: &str) {
        if !self.mute.swap(true, Ordering::Relaxed) {
            wake_ups_refused(BACKEND, &why);
        }
    }

    /// Learns what a new connection may do, and which run of a server it leads to; an error when it may not
    /// call the scripts' commands. One round trip, and a second one at a server that does not know the
    /// script. The run is empty where the user may not ask for it.
    pub(crate) async fn greet<C: ConnectionLike>(
        &self,
        connection: &mut C,
    ) -> RedisResult<Arc<str>> {
        let mut pipe = redis::pipe();
        pipe.add_command(script::RIGHTS.alone("EVALSHA"));
        pipe.cmd("PUBLISH").arg(keys::channel(&self.client)).arg(ALIVE);
        pipe.cmd("INFO").arg("server");
        let mut answers = connection.req_packed_commands(&pipe, 0, 3).await?.into_iter();
        let (rights, published) = (answers.next(), answers.next());
        let mut rights = rights.unwrap_or(Value::Nil).extract_error();
        if let Err(error) = &rights
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            let whole = connection.req_packed_command(&script::RIGHTS.alone("EVAL")).await?;
            rights = whole.extract_error();
        }
        if let Some(missing) = missing(&rights?) {
            let what = "the user of this URL may not call commands that lockkit needs";
            return Err((ErrorKind::AuthenticationFailed, what, missing).into());
        }
        match published.unwrap_or(Value::Nil).extract_error() {
            Err(error) if is_about_rights(&error) || is_unknown(&error) => {
                self.refused(&error.to_string());
            }
            Err(error) => return Err(error),
            Ok(_) => self.mute.store(false, Ordering::Relaxed),
        }
        let info = answers.next().unwrap_or(Value::Nil);
        let mut lines = reply::text(&info).unwrap_or_default().lines();
        Ok(lines.find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().into())
    }
}

/// What `rights.lua` answers, as words; nothing when no right is missing.
fn missing(rights: &Value) -> Option<String> {
    let Value::Array(names) = rights else { return None };
    let names: Vec<_> = names.iter().filter_map(reply::text).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Whether the server refused a command, a key or a channel to this user.
pub(crate) fn is_about_rights(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    // In scripts: before Redis 7.2, and since.
    let says = |what| detail.contains(what);
    error.code() == Some("NOPERM")
        || says("The user executing the script can't")
        || says("ACL failure in script")
}

/// Whether the server has no such command: somebody renamed it.
fn is_unknown(error: &RedisError) -> bool {
    error.code() == Some("ERR") && error.detail().unwrap_or_default().contains("unknown command")
}

impl Shared {
    /// The error for a call that the server refused to this user: it says which right is missing, where
    /// the server can tell.
    pub(crate) async fn forbidden(&self, failed: Failed, key: &str) -> Error {
        let none: [&str; 0] = [];
        let call = Call { keys: &[key], args: &none };
        let rights = script::RIGHTS.call(&self.link, call, None, true).await;
        match rights.ok().and_then(|rights| missing(&rights.result.answer)) {
            Some(names) => Error::permanent(BACKEND, format!("the user may not call {names}")),
            None => to_error(failed.error),
        }
    }

    /// An answer without what it says about messages.
    pub(crate) fn heard(&self, answer: Value) -> Value {
        match answer {
            Value::Array(mut items) if is_unheard(&items) => {
                let answer = items.pop().unwrap_or(Value::Nil);
                self.wakes.voice.refused(reply::text(&items[1]).unwrap_or_default());
                answer
            }
            answer => answer,
        }
    }
}

/// As `speak` in `answer.lua` says it.
fn is_unheard(items: &[Value]) -> bool {
    matches!(items, [first, _, _] if reply::text(first) == Some("unheard"))
}
