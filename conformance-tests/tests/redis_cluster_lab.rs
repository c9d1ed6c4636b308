//! Redis Cluster, three masters: what its operations cost, and what happens when servers or the
//! network misbehave, a replica takes over, or slots move.

mod redis_site;

use lockkit_conformance::lab::Layout;
use redis_site::Redis;

lockkit_conformance::trials!(Redis::on(Layout::RedisCluster));
