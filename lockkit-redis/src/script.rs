//! The Lua scripts: read from their files once, called by their hash, sent in full when the server
//! does not know them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use lockkit_core::driver::Attempted;
use redis::{Cmd, ToRedisArgs, Value};

use crate::failure::{Again, Failed};
use crate::link::{Link, Turn};
use crate::peer::Heard;

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    speaks: Text,
    /// The same for a client whose messages the server refuses: it does not try to publish.
    mute: Text,
    turn: Turn,
}

/// A script as the server gets it, and the hash by which it is called.
#[derive(Debug)]
struct Text {
    whole: String,
    sha: String,
}

impl Text {
    fn new(whole: String) -> Self {
        let sha = redis::Script::new(&whole).get_hash().to_owned();
        Self { whole, sha }
    }
}

impl Script {
    fn new(text: &str, turn: Turn) -> Self {
        let mut text = text.to_owned();
        for (name, part) in PARTS {
            text = text.replace(&format!("-- #include {name}\n"), part);
        }
        let text = text.replace("{commands}", &COMMANDS);
        let mute = Text::new(text.replace("local MUTE = false", "local MUTE = true"));
        Self { speaks: Text::new(text), mute, turn }
    }

    /// A call without keys and arguments: by its hash (`EVALSHA`), or in full (`EVAL`).
    pub(crate) fn alone(&self, verb: &str) -> Cmd {
        let script = if verb == "EVAL" { &self.speaks.whole } else { &self.speaks.sha };
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(0);
        cmd
    }

    /// A call that somebody else sends: by its hash, or in full.
    pub(crate) fn command<K: Key, A: Arg>(
        &self,
        call: &Call<'_, K, A>,
        mute: bool,
        whole: bool,
    ) -> Cmd {
        let text = if mute { &self.mute } else { &self.speaks };
        match whole {
            true => call.command("EVAL", &text.whole, None),
            false => call.command("EVALSHA", &text.sha, None),
        }
    }

    /// Calls it. One round trip, and a second one when the server has forgotten it. When the
    /// connection turns out to be dead, once more on a new one, with `again` behind the arguments.
    pub(crate) async fn call<K: Key, A: Arg>(
        &self,
        link: &Link,
        call: Call<'_, K, A>,
        again: Option<&[u8]>,
        mute: bool,
    ) -> Result<Attempted<Heard<Value>>, Failed> {
        let text = if mute { &self.mute } else { &self.speaks };
        let failed = match self.call_once(link, text, &call, None).await {
            Ok(heard) => return Ok(heard.into()),
            Err(failed) => failed,
        };
        let ambiguous = match failed.again {
            Again::No => return Err(failed),
            Again::Refused => 0,
            Again::Unanswered => 1,
        };
        // What is rare is boxed: every lock and release carries this future.
        let again = again.filter(|_| ambiguous > 0);
        let answer = Box::pin(self.call_once(link, text, &call, again)).await?;
        Ok(Attempted::after(ambiguous, answer))
    }

    async fn call_once<K: Key, A: Arg>(
        &self,
        link: &Link,
        text: &Text,
        call: &Call<'_, K, A>,
        again: Option<&[u8]>,
    ) -> Result<Heard<Value>, Failed> {
        let key = call.keys[0].as_ref();
        match link.send(&call.command("EVALSHA", &text.sha, again), key, self.turn).await {
            Err(failed) if is_unknown_script(&failed.error) => {
                let whole = call.command("EVAL", &text.whole, again);
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

/// What scripts include: first those that include others themselves.
const PARTS: [(&str, &str); 3] = [
    ("line.lua", include_str!("scripts/line.lua")),
    ("register.lua", include_str!("scripts/register.lua")),
    ("answer.lua", include_str!("scripts/answer.lua")),
];

/// Every command that a script calls, but for PUBLISH: who may not publish is served all the same.
static COMMANDS: LazyLock<String> = LazyLock::new(|| {
    let texts = PARTS.iter().map(|(_, text)| text).chain(FILES);
    let names = texts.flat_map(|text| text.split("call('").skip(1));
    let names = names.filter_map(|rest| rest.split('\'').next());
    let names: BTreeSet<_> = names.filter(|name| *name != "PUBLISH").collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
});

macro_rules! scripts {
    ($($name:ident = $file:literal $turn:ident),* $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("scripts/", $file)), Turn::$turn)
        });)*

        static FILES: &[&str] = &[$(include_str!(concat!("scripts/", $file))),*];

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
    RIGHTS = "rights.lua" First,
    COUNTERS = "counters.lua" Waits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_a_header_and_its_include_was_found() {
        for (file, script) in ALL {
            for text in [&script.speaks, &script.mute] {
                assert!(text.whole.starts_with("-- "), "{file}");
                assert!(!text.whole.contains("#include"), "{file}");
                assert!(!text.whole.contains("{commands}"), "{file}");
                assert_eq!(text.sha.len(), 40);
            }
        }
    }

    #[test]
    fn the_commands_of_the_scripts_are_known() {
        let names: Vec<_> = COMMANDS.split(' ').collect();
        assert!(names.iter().all(|name| name.bytes().all(|c| c.is_ascii_uppercase())), "{names:?}");
        for name in ["SET", "GETSET", "GETRANGE", "ZADD", "TIME", "HSTRLEN", "PERSIST"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert!(!names.contains(&"PUBLISH"));
        for (file, script) in ALL {
            assert!(!script.speaks.whole.contains("call(\""), "{file}: a name that is not seen");
        }
    }

    #[test]
    fn what_a_mute_client_calls_differs_where_messages_are_sent() {
        assert_ne!(RELEASE.speaks.sha, RELEASE.mute.sha);
        assert_ne!(STORE.speaks.sha, STORE.mute.sha);
    }
}
