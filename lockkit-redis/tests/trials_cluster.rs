//! Redis Cluster, three masters: what its operations cost, and what happens when servers or the
//! network misbehave, a replica takes over, or slots move.

mod site;

use lockkit_lab::Layout;
use site::Redis;

lockkit_lab::trials!(Redis::on(Layout::RedisCluster));
