//! Redis, a single server: what its operations cost, and what happens when server or network
//! misbehave.

mod site;

use site::Redis;

lockkit_lab::trials!(Redis::alone());
