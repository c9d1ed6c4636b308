//! `get`, `put` and `delete`: the value of a register.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;

use lockkit::{Error, MAX_REGISTER_BYTES, Name, Precondition, RegisterEntry, Token, Version};
use serde::Serialize;

use crate::args::BackendArgs;
use crate::args::sync::{DeleteArgs, GetArgs, PutArgs};
use crate::backend::Backend;
use crate::commands::check;
use crate::exit::{ExitError, code};
use crate::run::held::{self, Held};
use crate::view::json;
use crate::{acquire, output};

/// A register as JSON. Stable: programs read it.
#[derive(Serialize)]
struct EntryView<'a> {
    name: &'a str,
    version: u64,
    /// The highest that any write bore.
    token: Option<Token>,
    /// When it is UTF-8.
    value: Option<&'a str>,
    /// When it is not.
    hex: Option<String>,
}

/// Prints the value, byte for byte; for people, with a line break behind.
pub(crate) async fn get(args: &GetArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let entry = locks.register(&args.name).load().await;
    acquire::close(&locks).await;
    let Some(entry) = entry? else {
        let sentence = format!("the register {:?} has no value", args.name);
        return Err(ExitError::new(code::NO, sentence));
    };
    if args.json {
        output::print_line(json(&view(&args.name, &entry))?)?;
        return Ok(0);
    }
    let mut out = io::stdout().lock();
    let end: &[u8] = match out.is_terminal() && !entry.value.ends_with(b"\n") {
        true => b"\n",
        false => b"",
    };
    let written = out.write_all(&entry.value).and_then(|()| out.write_all(end));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(0),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(ExitError::os("cannot write to stdout", e)),
    }
}

fn view<'a>(name: &'a str, entry: &'a RegisterEntry) -> EntryView<'a> {
    let value = std::str::from_utf8(&entry.value).ok();
    let hex = || entry.value.iter().map(|byte| format!("{byte:02x}")).collect();
    let hex = value.is_none().then(hex);
    EntryView { name, version: entry.version.0, token: entry.token, value, hex }
}

/// Prints the version.
pub(crate) async fn put(args: &PutArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.name)?;
    let backend = Backend::choose(backend)?;
    let fence = args.fenced.then(|| surrounding_lock(&backend)).transpose()?;
    let value = value(args)?;
    let expect = match args.if_version {
        Some(version) => Precondition::Version(Version(version)),
        None if args.if_absent => Precondition::Absent,
        None => Precondition::Anything,
    };
    let locks = backend.connect().await?;
    let register = locks.register(&args.name);
    let register = match args.keep {
        Some(time) => register.ttl(time),
        None => register,
    };
    let stored = async {
        let stored = match &fence {
            Some((held, token)) => {
                // The token alone lets a lock that was released write until its next holder has.
                check::still_holds(&locks, held).await?;
                register.store_with_token(*token, expect, value).await
            }
            None => register.compare_and_store(expect, value).await,
        };
        stored.map_err(|error| refused(error, expect))
    };
    let stored = stored.await;
    acquire::close(&locks).await;
    output::print_line(stored?.0)?;
    Ok(0)
}

/// Deletes the value. Says nothing when there was one.
pub(crate) async fn delete(args: &DeleteArgs, backend: &BackendArgs) -> Result<u8, ExitError> {
    Name::new(&args.name)?;
    let locks = Backend::choose(backend)?.connect().await?;
    let register = locks.register(&args.name);
    let deleted = async {
        let Some(entry) = register.load().await? else {
            let sentence = format!("the register {:?} has no value", args.name);
            return Err(ExitError::new(code::NO, sentence));
        };
        let expect = Precondition::Version(args.if_version.map_or(entry.version, Version));
        register.compare_and_delete(expect).await.map_err(|error| refused(error, expect))
    };
    let deleted = deleted.await;
    acquire::close(&locks).await;
    deleted.map(|()| 0)
}

/// Says what was expected and not found.
fn refused(error: Error, expect: Precondition) -> ExitError {
    let (Error::Conflict { name, maybe_applied: false, .. }, expect) = (&error, expect) else {
        return error.into();
    };
    match expect {
        Precondition::Absent => {
            ExitError::new(code::NO, format!("the register {name:?} has a value already"))
        }
        Precondition::Version(version) => ExitError::new(
            code::NO,
            format!("the register {name:?} does not have version {}: get it again", version.0),
        ),
        Precondition::Anything => error.into(),
    }
}

/// The lock that this runs under, and its token.
fn surrounding_lock(backend: &Backend) -> Result<(Held, Token), ExitError> {
    match held::held().pop() {
        Some(held) => {
            let token = held.fences(backend)?;
            Ok((held, token))
        }
        None => Err(ExitError::usage(
            "this does not run under `lockkit run` or `elect`: there is no token to fence with",
        )),
    }
}

fn value(args: &PutArgs) -> Result<Vec<u8>, ExitError> {
    let mut bytes = Vec::new();
    match &args.value {
        Some(value) if value == "-" => {
            let most = MAX_REGISTER_BYTES as u64 + 1;
            let read = io::stdin().lock().take(most).read_to_end(&mut bytes);
            read.map_err(|e| ExitError::usage(format!("cannot read the value from stdin: {e}")))?;
        }
        Some(value) => bytes.extend(value.as_bytes()),
        // In a script, this is most likely a variable that is not set.
        None => {
            return Err(ExitError::usage(format!(
                "there is no value for {:?}: give one, or add - to read it from stdin",
                args.name
            )));
        }
    }
    if bytes.is_empty() && !args.allow_empty {
        return Err(ExitError::usage(
            "the value is empty: add --allow-empty if that is meant, or use `lockkit delete`",
        ));
    }
    match bytes.len() > MAX_REGISTER_BYTES {
        true => {
            Err(ExitError::usage(format!("a register keeps {MAX_REGISTER_BYTES} bytes at most")))
        }
        false => Ok(bytes),
    }
}
