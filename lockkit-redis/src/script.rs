//! The Lua scripts: read from their files once, called by their hash, sent in full when the server
//! does not know them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::server::Priority;

/// A script of `scripts/`.
#[derive(Debug)]
pub(crate) struct Script {
    publishing: ScriptText,
    /// The same for a client whose messages the server refuses: it does not try to publish.
    muted: ScriptText,
    pub(crate) priority: Priority,
}

/// A script as the server gets it, and the hash by which it is called.
#[derive(Debug)]
pub(crate) struct ScriptText {
    whole: String,
    sha: String,
}

impl ScriptText {
    fn new(whole: String) -> Self {
        let sha = redis::Script::new(&whole).get_hash().to_owned();
        Self { whole, sha }
    }
}

impl Script {
    fn new(text: &str, priority: Priority) -> Self {
        let mut text = text.to_owned();
        for (name, part) in PARTS {
            text = text.replace(&format!("-- #include {name}\n"), part);
        }
        let text = text.replace("{commands}", &COMMANDS);
        let muted = ScriptText::new(text.replace("local MUTED = false", "local MUTED = true"));
        Self { publishing: ScriptText::new(text), muted, priority }
    }

    pub(crate) fn text(&self, muted: bool) -> &ScriptText {
        if muted { &self.muted } else { &self.publishing }
    }
}

/// Whether the server has forgotten a script, which is then sent in full.
pub(crate) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Keys and arguments of one call.
pub(crate) struct Call<'a, K, A> {
    /// The first one is that of the lock, or of the register.
    pub(crate) keys: &'a [K],
    args: &'a [A],
    /// What a call is sent with behind its arguments that may have been carried out before.
    again: Option<&'a [u8]>,
}

impl<'a, K: AsRef<str>, A: AsRef<[u8]>> Call<'a, K, A> {
    pub(crate) fn new(keys: &'a [K], args: &'a [A]) -> Self {
        Self { keys, args, again: None }
    }

    pub(crate) fn with_again(self, again: &'a [u8]) -> Self {
        Self { again: Some(again), ..self }
    }

    /// The command: with the script's hash, or in full. In a cluster it names a key that never exists:
    /// while a slot moves to another node, both of them refuse each command of a script whose key they
    /// do not have, also in the middle of it, after others have written. A call that names two keys, of
    /// which one never exists, is refused as a whole instead, with TRYAGAIN.
    pub(crate) fn command(
        &self,
        text: &ScriptText,
        whole: bool,
        never: Option<&str>,
        again: bool,
    ) -> Cmd {
        let (verb, script) = if whole { ("EVAL", &text.whole) } else { ("EVALSHA", &text.sha) };
        let words = self.keys.iter().map(|key| key.as_ref().len());
        let bytes = words.chain(self.args.iter().map(|arg| arg.as_ref().len())).sum::<usize>();
        // The verb, the script and the number of keys come in addition.
        let words = self.keys.len() + self.args.len() + 5;
        let mut cmd = Cmd::with_capacity(words, bytes + script.len() + 64);
        cmd.arg(verb).arg(script).arg(self.keys.len() + usize::from(never.is_some()));
        for key in self.keys {
            cmd.arg(key.as_ref());
        }
        cmd.arg(never);
        for arg in self.args {
            cmd.arg(arg.as_ref());
        }
        cmd.arg(self.again.filter(|_| again));
        cmd
    }
}

/// What scripts include: first those that include others themselves.
const PARTS: [(&str, &str); 9] = [
    ("pass.lua", include_str!("scripts/pass.lua")),
    ("queue.lua", include_str!("scripts/queue.lua")),
    ("leave.lua", include_str!("scripts/leave.lua")),
    ("enqueue.lua", include_str!("scripts/enqueue.lua")),
    ("claims.lua", include_str!("scripts/claims.lua")),
    ("clock.lua", include_str!("scripts/clock.lua")),
    ("register.lua", include_str!("scripts/register.lua")),
    ("gate.lua", include_str!("scripts/gate.lua")),
    ("answer.lua", include_str!("scripts/answer.lua")),
];

/// Every command that a script calls, but for PUBLISH: a user that may not publish is served all the same.
static COMMANDS: LazyLock<String> = LazyLock::new(|| {
    let texts = PARTS.iter().map(|(_, text)| text).chain(FILES);
    let names = texts.flat_map(|text| text.split("call('").skip(1));
    let names = names.filter_map(|rest| rest.split('\'').next());
    let names: BTreeSet<_> = names.filter(|name| *name != "PUBLISH").collect();
    names.into_iter().collect::<Vec<_>>().join(" ")
});

macro_rules! scripts {
    ($($name:ident = $file:literal $priority:ident),* $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("scripts/", $file)), Priority::$priority)
        });)*

        static FILES: &[&str] = &[$(include_str!(concat!("scripts/", $file))),*];

        #[cfg(test)]
        static ALL: &[(&str, &LazyLock<Script>)] = &[$(($file, &$name)),*];
    };
}

scripts! {
    ACQUIRE = "acquire.lua" Waits,
    RELEASE = "release.lua" First,
    EXCHANGE = "exchange.lua" First,
    RENEW = "renew.lua" First,
    SHORTEN = "shorten.lua" First,
    DOWNGRADE = "downgrade.lua" First,
    BREAK = "break.lua" Waits,
    INSPECT = "inspect.lua" Waits,
    RAISE = "raise.lua" First,
    RESIZE = "resize.lua" Waits,
    BASE = "base.lua" Waits,
    LOAD = "load.lua" Waits,
    INSPECT_REGISTER = "inspect_register.lua" Waits,
    STORE = "store.lua" Waits,
    RIGHTS = "rights.lua" First,
    COUNTERS = "counters.lua" Waits,
    FORMAT = "format.lua" Waits,
    GATE_TAKE = "gate_take.lua" Waits,
    GATE_KEEP = "gate_keep.lua" First,
    GATE_GIVE = "gate_give.lua" First,
    GATE_EXPIRY = "gate_expiry.lua" Waits,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_has_a_header_and_its_include_was_found() {
        for (file, script) in ALL {
            for text in [&script.publishing, &script.muted] {
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
            assert!(
                !script.publishing.whole.contains("call(\""),
                "{file}: a name that is not seen"
            );
        }
    }

    #[test]
    fn what_a_muted_client_calls_differs_where_messages_are_sent() {
        assert_ne!(RELEASE.publishing.sha, RELEASE.muted.sha);
        assert_ne!(STORE.publishing.sha, STORE.muted.sha);
    }
}
