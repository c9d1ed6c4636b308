//! Redis, a single server: what its operations cost, and what happens when server or network
//! misbehave.

mod redis_site;

use redis_site::Redis;

lockkit_conformance::trials!(Redis::alone());
