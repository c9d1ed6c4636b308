//! Redis under sentinels: what its operations cost through the master that the sentinels name, and
//! what happens when servers or the network misbehave, or a replica takes over.

mod redis_site;

use lockkit_conformance::lab::Layout;
use redis_site::Redis;

lockkit_conformance::trials!(Redis::on(Layout::RedisSentinel));
