//! Redis under sentinels: what its operations cost through the master that the sentinels name, and
//! what happens when servers or the network misbehave, or a replica takes over.

mod site;

use lockkit_lab::Layout;
use site::Redis;

lockkit_lab::trials!(Redis::on(Layout::RedisSentinel));
