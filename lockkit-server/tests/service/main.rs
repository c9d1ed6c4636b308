//! The service from outside: one server over the memory driver, and whatever is sent to it.

mod ambiguous;
mod evidence;
mod limits;
mod nonsense;
mod openapi;
mod page;
mod permits;
mod refusals;
mod served;
mod slow;
mod terraform;
mod tls;
mod tokens;
mod unreachable;
mod watch;
