//! The claims and registers that are waited for through one driver, and what messages about them say.

use lockkit_core::Token;
use lockkit_core::driver::ClaimId;
use lockkit_core::waiting::{RegisterBells, Waiters};
use tokio::sync::watch;

use crate::decode;
use crate::publisher::ALIVE;

#[derive(Debug)]
pub(crate) struct WaiterRegistry {
    pub(crate) claims: Waiters<ClaimId>,
    pub(crate) registers: RegisterBells,
    /// The number of the last message to itself that this client has got.
    pub(crate) alive: watch::Sender<u64>,
}

impl Default for WaiterRegistry {
    fn default() -> Self {
        Self {
            claims: Waiters::new(|id| *id),
            registers: RegisterBells::default(),
            alive: watch::Sender::new(0),
        }
    }
}

impl WaiterRegistry {
    /// Passes on a message of the channel of this client.
    pub(crate) fn notify(&self, message: &str) {
        let (verb, rest) = message.split_once(' ').unwrap_or((message, ""));
        match verb {
            "changed" => return self.registers.ring(Some(rest)),
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
            Some(token) if verb == "granted" => {
                self.claims.granted(&id, |claim| decode::grant(claim, token));
            }
            _ => self.claims.ring(&id),
        }
    }
}
