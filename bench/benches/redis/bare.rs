//! The bare calls whose effect is that of a lock with a token and its release: as few commands as
//! will do, in scripts that are called by their hash, through the same client crate.

use redis::aio::MultiplexedConnection;

const TAKE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                    return redis.call('INCR', KEYS[2]) end return false";
const GIVE_BACK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                         return redis.call('DEL', KEYS[1]) end return 0";

/// Who calls them. Knows its id beforehand, which a real lock has to draw.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    take: String,
    give_back: String,
}

impl Bare {
    pub(crate) async fn new(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let [take, give_back] =
            [TAKE, GIVE_BACK].map(|text| redis::Script::new(text).get_hash().to_owned());
        for text in [TAKE, GIVE_BACK] {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).to_owned();
            load.query_async::<String>(&mut connection).await.unwrap();
        }
        Self { connection, take, give_back }
    }

    /// The counter is that of the lock's hash tag, as a cluster needs it.
    pub(crate) async fn pair(mut self, lock: &str, counter: &str) {
        const ID: &str = "0123456789abcdef0123456789abcdef";
        let mut take = redis::cmd("EVALSHA");
        take.arg(&self.take).arg(2).arg(lock).arg(counter).arg(ID).arg(30_000);
        let token: u64 = take.query_async(&mut self.connection).await.unwrap();
        assert!(token > 0);
        let mut give_back = redis::cmd("EVALSHA");
        give_back.arg(&self.give_back).arg(1).arg(lock).arg(ID);
        let gone: u64 = give_back.query_async(&mut self.connection).await.unwrap();
        assert_eq!(gone, 1);
    }
}
