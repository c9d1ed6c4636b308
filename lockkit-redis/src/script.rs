//! The Lua scripts: read from their files once, called by their hash, sent in full when the server
//! does not know them.

use std::sync::LazyLock;

use lockkit_core::driver::Answered;
use redis::{Cmd, ToRedisArgs, Value};

use crate::failure::{Again, Failed};
use crate::link::{Link, Turn};

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    sha: String,
    turn: Turn,
}

impl Script {
    fn new(text: &str, turn: Turn) -> Self {
        let text = text.replace("-- #include line.lua\n", include_str!("scripts/line.lua"));
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha, turn }
    }

    /// Calls it. One round trip, and a second one when the server has forgotten it. When the
    /// connection turns out to be dead, once more on a new one, with `again` behind the arguments.
    pub(crate) async fn call<K: Key, A: Arg>(
        &self,
        link: &Link,
        call: Call<'_, K, A>,
        again: Option<&[u8]>,
    ) -> Result<Answered<Value>, Failed> {
        let failed = match self.call_once(link, &call, None).await {
            Ok(value) => return Ok(value.into()),
            Err(failed) => failed,
        };
        let unanswered = match failed.again {
            Again::No => return Err(failed),
            Again::Refused => 0,
            Again::Unanswered => 1,
        };
        // What is rare is boxed: every lock and release carries this future.
        let again = again.filter(|_| unanswered > 0);
        let answer = Box::pin(self.call_once(link, &call, again)).await?;
        Ok(Answered::after(unanswered, answer))
    }

    async fn call_once<K: Key, A: Arg>(
        &self,
        link: &Link,
        call: &Call<'_, K, A>,
        again: Option<&[u8]>,
    ) -> Result<Value, Failed> {
        let key = call.keys[0].as_ref();
        match link.send(&call.command("EVALSHA", &self.sha, again), key, self.turn).await {
            Err(failed) if is_unknown_script(&failed.error) => {
                let whole = call.command("EVAL", &self.text, again);
                Box::pin(link.send(&whole, key, self.turn)).await
            }
            answer => answer,
        }
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}

pub(crate) trait Key: AsRef<str> + ToRedisArgs + Sync {}
impl<T: AsRef<str> + ToRedisArgs + Sync> Key for T {}

pub(crate) trait Arg: AsRef<[u8]> + ToRedisArgs + Sync {}
impl<T: AsRef<[u8]> + ToRedisArgs + Sync> Arg for T {}

/// Keys and arguments of one call.
pub(crate) struct Call<'a, K, A> {
    /// The first one is that of the lock, or of the register.
    pub(crate) keys: &'a [K],
    pub(crate) args: &'a [A],
}

impl<K: Key, A: Arg> Call<'_, K, A> {
    fn command(&self, verb: &str, script: &str, again: Option<&[u8]>) -> Cmd {
        let words = self.keys.iter().map(|key| key.as_ref().len());
        let bytes = words.chain(self.args.iter().map(|arg| arg.as_ref().len())).sum::<usize>();
        let words = self.keys.len() + self.args.len();
        // The verb and the number of keys come in addition.
        let mut cmd = Cmd::with_capacity(words + 3, bytes + script.len() + 16);
        cmd.arg(verb);
        cmd.arg(script).arg(self.keys.len()).arg(self.keys).arg(self.args).arg(again);
        cmd
    }
}

macro_rules! scripts {
    ($($name:ident = $file:literal $turn:ident),* $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("scripts/", $file)), Turn::$turn)
        });)*

        #[cfg(test)]
        static ALL: &[(&str, &LazyLock<Script>)] = &[$(($file, &$name)),*];
    };
}

scripts! {
    ACQUIRE = "acquire.lua" Waits,
    RELEASE = "release.lua" First,
    RENEW = "renew.lua" First,
    SHORTEN = "shorten.lua" First,
    DOWNGRADE = "downgrade.lua" First,
    BREAK = "break.lua" Waits,
    INSPECT = "inspect.lua" Waits,
    RAISE = "raise.lua" First,
    RESIZE = "resize.lua" Waits,
    BASE = "base.lua" Waits,
    LOAD = "load.lua" Waits,
    GLANCE = "glance.lua" Waits,
    STORE = "store.lua" Waits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_a_header_and_its_include_was_found() {
        for (file, script) in ALL {
            assert!(script.text.starts_with("-- "), "{file}");
            assert!(!script.text.contains("#include"), "{file}");
            assert_eq!(script.sha.len(), 40);
        }
    }
}
