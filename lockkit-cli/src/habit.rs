//! Options of flock(1) that people type out of habit, and what lockkit has instead. Those that mean
//! the same here are options of ours.

/// What to write instead of this option of flock; `None` for any other.
pub(crate) fn instead_of(option: &str) -> Option<&'static str> {
    Some(match option {
        "-x" | "-e" | "--exclusive" => {
            "a lock is exclusive unless --shared is given, so leave it out"
        }
        "--nb" | "--nonblock" | "--nonblocking" => "use --try",
        "--timeout" => "use --wait",
        "--conflict-exit-code" => "use --busy-exit-code",
        "-o" | "--close" => {
            "use --leftovers=leave, with which processes that the command leaves behind hold no lock"
        }
        "-F" | "--no-fork" => {
            "lockkit stays to renew the lock, so leave it out; see also --leftovers=leave"
        }
        "-u" | "--unlock" => {
            "a lock is released when its command ends; `lockkit release` releases one of `acquire`"
        }
        _ => return None,
    })
}
