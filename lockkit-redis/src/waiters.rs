//! The claims and registers that are waited for through one driver, and what messages about them say.

use lockkit_core::Token;
use lockkit_core::clock::Moment;
use lockkit_core::driver::{ClaimId, Grant, LeaseStart};
use lockkit_core::waiting::{RegisterWatchers, Waiters};
use redis::Value;
use tokio::sync::watch;

use crate::publisher::ALIVE;
use crate::{decode, keys};

#[derive(Debug)]
pub(crate) struct WaiterRegistry {
    pub(crate) claims: Waiters<ClaimId>,
    pub(crate) registers: RegisterWatchers,
    /// The number of the last message to itself that this client has got.
    pub(crate) alive: watch::Sender<u64>,
}

impl Default for WaiterRegistry {
    fn default() -> Self {
        Self {
            claims: Waiters::new(|id| *id),
            registers: RegisterWatchers::default(),
            alive: watch::Sender::new(0),
        }
    }
}

impl WaiterRegistry {
    /// The answer of a script, without what it says of claims of this client that hold by the request, which
    /// was sent at `sent`: as `speak` in answer.lua says it. Those that wait here are notified.
    pub(crate) fn take_grants(&self, answer: Value, sent: Moment) -> Value {
        let mut items = match answer {
            Value::Array(items) if is_granted(&items) => items,
            answer => return answer,
        };
        let answer = items.pop().unwrap_or(Value::Nil);
        if let Some(Value::Array(grants)) = items.pop() {
            for grant in grants.chunks_exact(2) {
                let id = decode::text(&grant[0]).and_then(ClaimId::from_hex);
                let (Some(id), Some(token)) = (id, decode::token(&grant[1])) else { continue };
                let start = LeaseStart::Sent(sent);
                self.claims.granted(&id, |claim| Grant { start, ..decode::grant(claim, token) });
            }
        }
        answer
    }

    /// Claims that wait for these locks are asked about at once.
    pub(crate) fn ask_about<K: AsRef<str>>(&self, locks: &[K]) {
        self.claims.ask_about_those(|claim| {
            let lock = keys::lock(&claim.key).0;
            locks.iter().any(|it| it.as_ref() == lock)
        });
    }

    /// Passes on a message of the channel of this client.
    pub(crate) fn notify(&self, message: &str) {
        let (kind, rest) = message.split_once(' ').unwrap_or((message, ""));
        match kind {
            "changed" => return self.registers.notify(Some(rest)),
            ALIVE => {
                if let Ok(number) = rest.parse() {
                    self.alive.send_replace(number);
                }
                return;
            }
            _ => {}
        }
        let (id, token) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some(id) = ClaimId::from_hex(id) else { return };
        match token.parse().ok().and_then(Token::new) {
            Some(token) if kind == "granted" => {
                self.claims.granted(&id, |claim| decode::grant(claim, token));
            }
            _ => self.claims.ask_now(&id),
        }
    }
}

fn is_granted(items: &[Value]) -> bool {
    matches!(items, [first, Value::Array(_), _] if decode::text(first) == Some("granted"))
}
