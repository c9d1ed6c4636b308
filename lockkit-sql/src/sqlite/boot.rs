//! Which run of this machine it is: an id that changes with every boot, since times on the boot
//! clock mean nothing to another boot. Reads files of the system, or asks `sysctl`; no SQL.

use lockkit_core::Error;

use super::BACKEND;

/// The id of the running system's boot clock.
///
/// On Linux the kernel's boot id. A process in a time namespace of its own reads another boot
/// clock than its neighbours under the same id, so the offset of the namespace is part of it.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path).map_err(|e| {
        Error::permanent(
            BACKEND,
            format!("cannot tell which boot of this machine it is: {path}: {e}; mount /proc"),
        )
    })?;
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Ok(with_offset(id.trim(), &offsets))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn with_offset(id: &str, offsets: &str) -> String {
    let boottime = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "boottime").then(|| (words.next(), words.next()))
    });
    match boottime {
        Some((Some(secs), Some(nanos))) if (secs, nanos) != ("0", "0") => {
            format!("{id}+{secs}.{nanos}")
        }
        _ => id.to_owned(),
    }
}

/// The id of the running system's boot clock: the session id of Apple's kernels, the moment of the
/// boot of the BSDs.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn boot_id() -> Result<String, Error> {
    for name in ["kern.bootsessionuuid", "kern.boottime"] {
        let answer = std::process::Command::new("/usr/sbin/sysctl")
            .args(["-n", name])
            .output()
            .or_else(|_| std::process::Command::new("/sbin/sysctl").args(["-n", name]).output());
        if let Ok(output) = answer {
            let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if output.status.success() && !id.is_empty() {
                return Ok(id);
            }
        }
    }
    Err(Error::permanent(
        BACKEND,
        "cannot tell which boot of this machine it is: sysctl does not say",
    ))
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn another_time_namespace_is_another_clock() {
        assert_eq!(with_offset("id", ""), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 0 0\n"), "id");
        assert_eq!(with_offset("id", "monotonic 0 0\nboottime 60 5\n"), "id+60.5");
    }

    #[test]
    fn the_boot_has_an_id_that_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
    }
}
