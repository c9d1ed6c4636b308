//! What the user of a connection may do: publish, and call the commands of the scripts. Asked once for
//! each connection, so that no script stops in the middle of its writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockkit_core::driver::{ClaimId, wake_ups_refused};
use redis::aio::ConnectionLike;
use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::error::is_about_rights;
use crate::script::{self, Call};
use crate::server::ask;
use crate::{BACKEND, decode, keys};

/// The first word of a message of a client to itself: its subscription is where its commands go.
pub(crate) const ALIVE: &str = "alive";

/// The id under which a client publishes, and whether it may.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// The id of this client, which its channel and its claims bear.
    pub(crate) client: String,
    muted: AtomicBool,
}

impl Publisher {
    pub(crate) fn new() -> Self {
        let id = ClaimId::random().to_hex();
        Self { client: id[..16].to_owned(), muted: AtomicBool::new(false) }
    }

    /// Whether the server refuses what this client publishes. Its scripts do not try it then, since
    /// each refusal is an entry in the server's log.
    pub(crate) fn is_muted(&self) -> bool {
        self.muted.load(Ordering::Relaxed)
    }

    /// The client as its claims name it: claims behind one of a muted client poll.
    pub(crate) fn marked_client(&self) -> String {
        let mark = if self.is_muted() { "-" } else { "" };
        format!("{mark}{}", self.client)
    }

    /// The server refused a message. Logged once a connection.
    pub(crate) fn refused(&self, why: &str) {
        if !self.muted.swap(true, Ordering::Relaxed) {
            wake_ups_refused(BACKEND, &why);
        }
    }

    /// Learns what a new connection may do, and to which run of a server it leads; an error when it may not
    /// call the scripts' commands. One round trip, and a second one at a server that does not know the
    /// script. The run is empty where the user may not ask for it.
    pub(crate) async fn greet<C: ConnectionLike>(
        &self,
        connection: &mut C,
    ) -> RedisResult<Arc<str>> {
        let mut pipe = redis::pipe();
        let none: [&str; 0] = [];
        let rights =
            |whole| Call::new(&none, &none).command(script::RIGHTS.text(false), whole, None, false);
        pipe.add_command(rights(false));
        pipe.cmd("PUBLISH").arg(keys::channel(&self.client)).arg(ALIVE);
        pipe.cmd("INFO").arg("server");
        let mut answers = connection.req_packed_commands(&pipe, 0, 3).await?.into_iter();
        let (allowed, published) = (answers.next(), answers.next());
        let mut allowed = allowed.unwrap_or(Value::Nil).extract_error();
        if allowed.as_ref().is_err_and(script::is_unknown) {
            allowed = ask(connection, &rights(true)).await;
        }
        if let Some(missing) = missing_rights(&allowed?) {
            let what = "the user of this URL may not call commands that lockkit needs";
            return Err((ErrorKind::AuthenticationFailed, what, missing).into());
        }
        match published.unwrap_or(Value::Nil).extract_error() {
            Err(error) if is_about_rights(&error) || is_unknown(&error) => {
                self.refused(&error.to_string());
            }
            Err(error) => return Err(error),
            Ok(_) => self.muted.store(false, Ordering::Relaxed),
        }
        let info = answers.next().unwrap_or(Value::Nil);
        let mut lines = decode::text(&info).unwrap_or_default().lines();
        Ok(lines.find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().into())
    }

    /// The answer of a script, without what it says about messages.
    pub(crate) fn read(&self, answer: Value) -> Value {
        match answer {
            Value::Array(mut items) if is_unpublished(&items) => {
                let answer = items.pop().unwrap_or(Value::Nil);
                self.refused(decode::text(&items[1]).unwrap_or_default());
                answer
            }
            answer => answer,
        }
    }
}

/// What `rights.lua` answers, as words; nothing when no right is missing.
pub(crate) fn missing_rights(rights: &Value) -> Option<String> {
    let Value::Array(names) = rights else { return None };
    let names: Vec<_> = names.iter().filter_map(decode::text).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Whether the server has no such command: somebody renamed it.
fn is_unknown(error: &RedisError) -> bool {
    error.code() == Some("ERR") && error.detail().unwrap_or_default().contains("unknown command")
}

/// As `speak` in `answer.lua` says it.
fn is_unpublished(items: &[Value]) -> bool {
    matches!(items, [first, _, _] if decode::text(first) == Some("unpublished"))
}
